"""The best of several checkpoints on a validation set, and what that choice does to its value there.

The greatest of many noisy values is more often one that luck has raised: chosen on a set, a checkpoint's value on that
very set is biased upwards (the winner's curse), its values on other sets are not. So they are told apart wherever a
chosen checkpoint is reported.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from rloop_core.errors import StageError
from rloop_core.evaluation.names import metric_name

Checkpoint: TypeAlias = tuple[int, int]
"""(iteration, RL step of its phase); step 0 is what the iteration ended with."""

BIASED = "biased: chosen on this set"
_SAME = 1e-12


@dataclass(frozen=True)
class Selection:
    """Which checkpoint is best on a set.

    Attributes:
        on: Label of the set.
        metric: Name of the metric, such as "avg@32".
        values: Its value for each checkpoint, in time's order.
    """

    on: str
    metric: str
    values: Mapping[Checkpoint, float]

    @property
    def best(self) -> Checkpoint:
        """The first checkpoint with the greatest value: of equals the one with the least training."""
        return self.tied[0]

    @property
    def tied(self) -> tuple[Checkpoint, ...]:
        """All checkpoints with the greatest value, in time's order."""
        return tuple(one for one in self.values if self.rank(one) == 1)

    def rank(self, checkpoint: Checkpoint) -> int:
        """1 for the best; equal values share a rank."""
        value = self.values[checkpoint]
        return 1 + sum(other > value + _SAME for other in self.values.values())

    def is_biased(self, label: str) -> bool:
        """Whether the best one's value on a set is: it was chosen there, from more than one."""
        return label == self.on and len(self.values) > 1


def select(summaries: Mapping[Checkpoint, Mapping[str, Any]], on: str, by: str) -> Selection:
    """Choose by the summaries of one set.

    Args:
        summaries: What `outcomes.summarise` gives, by checkpoint.
        on: Label of that set.
        by: `avg` or `pass@k`.

    Raises:
        StageError: No checkpoint, one without the metric or whose value is no number, or averages of different numbers
            of samples.
    """
    if not summaries:
        raise StageError(
            f"no checkpoint is evaluated on {on}", field="evaluate.select_on", fix="let the run go on first"
        )
    names = {one: metric_name(summary, by) for one, summary in summaries.items()}
    different = sorted({name or "none" for name in names.values()})
    if len(different) > 1 or None in names.values():
        fix = "evaluate all checkpoints alike"
        raise StageError(f"the checkpoints have no {by} in common: {', '.join(different)}", field="evaluate", fix=fix)
    metric = different[0]
    values = {one: float(summaries[one][metric]["value"]) for one in sorted(summaries, key=_time)}
    if not all(map(math.isfinite, values.values())):
        raise StageError(f"a checkpoint's {metric} on {on} is not a finite number", field="evaluate")
    return Selection(on, metric, values)


def _time(checkpoint: Checkpoint) -> tuple[int, float]:
    iteration, step = checkpoint
    return iteration, step or math.inf
