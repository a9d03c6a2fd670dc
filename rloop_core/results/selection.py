"""The checkpoint that a run's config chooses (`evaluate.select_on`), with its value on every set.

The greatest of many noisy values is more often one that luck has raised: the chosen checkpoint's value on the set of
the choice is biased upwards (the winner's curse), its values on other sets are not. Reports tell the two apart.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

from rloop_core.errors import ConfigError, StageError
from rloop_core.evaluation.metrics import metric_name
from rloop_core.results.run_reader import RunRecord, stored_evaluation

Checkpoint: TypeAlias = tuple[int, int]
"""(iteration, RL step of its phase); step 0 is the policy that the iteration ended with."""

BIASED = "biased: chosen on this set"
_SAME = 1e-12


@dataclass(frozen=True)
class Selected:
    """The best checkpoint of a run."""

    policy: str
    """"theta_2", or "RL step 50 of iteration 1"."""
    iteration: int
    step: int
    """0 is the policy that the iteration ended with, else a snapshot of its RL phase."""
    on: str
    metric: str
    """The set and the metric of the choice, such as "avg@32"."""
    checkpoints: int
    """Number of checkpoints that there were to choose from."""
    tied: tuple[str, ...]
    """Names of the others that are as good on the set of the choice."""
    values: dict[str, dict[str, Any]]
    """Set label to {metric, value, low, high, biased}."""

    @property
    def biased(self) -> frozenset[str]:
        """The sets on which its values are biased by the choice."""
        return frozenset(label for label, value in self.values.items() if value["biased"])

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self)

    def sentence(self) -> str:
        """Return the choice and the values in one line, the biased one marked."""
        rank = f"best of {self.checkpoints} checkpoints" if self.checkpoints > 1 else "the only checkpoint"
        more = f" and {len(self.tied) - 3} more" if len(self.tied) > 3 else ""
        ties = f", as good as {', '.join(self.tied[:3])}{more}" if self.tied else ""
        values = [
            f"{label} {value['metric']} {value['value']:.1%}" + (f" ({BIASED})" if value["biased"] else "")
            for label, value in self.values.items()
        ]
        return f"{self.policy}, {rank} by {self.metric} on {self.on}{ties}: {', '.join(values)}"


def selected(run: RunRecord) -> Selected | None:
    """Return the checkpoint that the config chooses; None if it asks for none, or nothing is evaluated yet.

    Candidates are every theta, and every snapshot that was evaluated, but not the base.

    Raises:
        StageError: The checkpoints were not evaluated alike.
    """
    on, by = run.config.evaluate.select_on, run.config.evaluate.select_by or "avg"
    summaries = _summaries(run) if on is not None else {}
    candidates = {place: sets[on] for place, sets in summaries.items() if on in sets}
    if on is None or not candidates:
        return None
    metric, best = best_checkpoints(candidates, on, by)
    values = {
        label: {"metric": name, **summary[name], "biased": label == on and len(candidates) > 1}
        for label, summary in summaries[best[0]].items()
        if (name := metric_name(summary, by))
    }
    policy, *tied = (f"RL step {step} of iteration {i}" if step else run.policy_name(i) for i, step in best)
    return Selected(policy, *best[0], on, metric, len(candidates), tuple(tied), values)


def best_checkpoints(
    summaries: Mapping[Checkpoint, Mapping[str, Any]], on: str, by: str
) -> tuple[str, list[Checkpoint]]:
    """Return the name of the metric, and all checkpoints with its greatest value, in the order of training.

    The first of these is the one to choose: among equals, the one with the least training.

    Args:
        summaries: Results of `outcomes.summarise` on one set, by checkpoint; at least one.
        on: Label of that set.
        by: `avg` or `pass@k`.

    Raises:
        StageError: A checkpoint lacks the metric or has a value that is not finite, or averages are over different
            numbers of samples.
    """
    metric, *others = sorted({metric_name(summary, by) or "none" for summary in summaries.values()})
    if others or metric == "none":
        what = f"the checkpoints have no {by} in common: {', '.join([metric, *others])}"
        raise StageError(what, field="evaluate", fix="evaluate all checkpoints alike")
    values = {place: float(summary[metric]["value"]) for place, summary in summaries.items()}
    if not all(map(math.isfinite, values.values())):
        raise StageError(f"a checkpoint's {metric} on {on} is not a finite number", field="evaluate")
    greatest = max(values.values())
    ordered = sorted(values, key=lambda place: (place[0], place[1] or math.inf))
    return metric, [place for place in ordered if greatest <= values[place] + _SAME]


def read_selected(run: RunRecord) -> Selected | None:
    """Return `selected` for a page: an error becomes a note."""
    none: Selected | None = None
    return run.read("the choice of a checkpoint", lambda: selected(run), none)


def must_be_selected(run: RunRecord) -> Selected:
    """Return `selected` for an export.

    Raises:
        ConfigError: The config chooses none, or nothing is evaluated yet.
    """
    chosen = selected(run)
    if chosen is not None:
        return chosen
    if run.config.evaluate.select_on is not None:
        raise ConfigError("no checkpoint is evaluated yet", field=run.name, fix="let the run go on first")
    labels = ", ".join(source.label for source in run.config.evaluate.sets)
    fix = f"start it again with --set evaluate.select_on=LABEL ({labels}): nothing is computed anew"
    raise ConfigError("the run's config does not say on which set to choose", field=run.name, fix=fix)


def _summaries(run: RunRecord) -> dict[Checkpoint, dict[str, dict[str, Any]]]:
    """Return the summaries by set of every evaluated checkpoint."""
    summaries: dict[Checkpoint, dict[str, dict[str, Any]]] = {}
    # The endpoint of vanilla RL is its last snapshot: one policy is one candidate.
    endpoint = run.config.explore.steps if run.config.arm == "vanilla-rl" else None
    for iteration in run.iterations:
        content = stored_evaluation(run, iteration)
        if content is not None:
            snapshots = {int(step): sets for step, sets in content["snapshots"].items() if int(step) != endpoint}
            summaries |= {(iteration, step): sets for step, sets in {**snapshots, 0: content["sets"]}.items()}
    return summaries
