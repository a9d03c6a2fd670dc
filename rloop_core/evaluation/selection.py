"""Choose the best of several checkpoints on a validation set.

The greatest of many noisy values is more often one that luck has raised: the chosen checkpoint's value on the set of
the choice is biased upwards (the winner's curse), its values on other sets are not. Reports tell the two apart.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from rloop_core.errors import StageError
from rloop_core.evaluation.metrics import metric_name

Checkpoint: TypeAlias = tuple[int, int]
"""(iteration, RL step of its phase); step 0 is the policy that the iteration ended with."""

BIASED = "biased: chosen on this set"
_SAME = 1e-12


@dataclass(frozen=True)
class Selection:
    """The best checkpoint on a set.

    Attributes:
        on: Label of the set.
        metric: Name of the metric, such as "avg@32".
        values: The metric of each checkpoint, in the order of training.
    """

    on: str
    metric: str
    values: Mapping[Checkpoint, float]

    @property
    def best(self) -> Checkpoint:
        """The first checkpoint with the greatest value: among equals, the one with the least training."""
        return self.tied[0]

    @property
    def tied(self) -> tuple[Checkpoint, ...]:
        """All checkpoints with the greatest value, in the order of training."""
        greatest = max(self.values.values())
        return tuple(checkpoint for checkpoint, value in self.values.items() if greatest <= value + _SAME)

    def is_biased(self, label: str) -> bool:
        """Return True if the best one was chosen on this set, from more than one checkpoint."""
        return label == self.on and len(self.values) > 1


def select(summaries: Mapping[Checkpoint, Mapping[str, Any]], on: str, by: str) -> Selection:
    """Choose by the summaries of one set.

    Args:
        summaries: Results of `outcomes.summarise`, by checkpoint.
        on: Label of that set.
        by: `avg` or `pass@k`.

    Raises:
        StageError: There is no checkpoint, one lacks the metric or has a value that is not finite, or averages are over
            different numbers of samples.
    """
    if not summaries:
        raise StageError(
            f"no checkpoint is evaluated on {on}", field="evaluate.select_on", fix="let the run go on first"
        )
    different = sorted({metric_name(summary, by) or "none" for summary in summaries.values()})
    metric = different[0]
    if different[1:] or metric == "none":
        fix = "evaluate all checkpoints alike"
        raise StageError(f"the checkpoints have no {by} in common: {', '.join(different)}", field="evaluate", fix=fix)
    ordered = sorted(summaries, key=lambda checkpoint: (checkpoint[0], checkpoint[1] or math.inf))
    values = {checkpoint: float(summaries[checkpoint][metric]["value"]) for checkpoint in ordered}
    if not all(map(math.isfinite, values.values())):
        raise StageError(f"a checkpoint's {metric} on {on} is not a finite number", field="evaluate")
    return Selection(on, metric, values)
