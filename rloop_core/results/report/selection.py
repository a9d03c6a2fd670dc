"""The checkpoint that a run's config chooses (`evaluate.select_on`), with its value on every set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rloop_core.errors import ConfigError
from rloop_core.evaluation.metrics import metric_name
from rloop_core.evaluation.selection import BIASED, Selection, select
from rloop_core.results.report.evaluation import stored_evaluation
from rloop_core.results.report.reading import RunRecord


@dataclass(frozen=True)
class Selected:
    """The best checkpoint of a run.

    Attributes:
        iteration, step: Where it is from; step 0 is what the iteration ended with.
        policy: "theta_2", or "RL step 50 of iteration 1".
        selection: How it was chosen.
        values: Set label to {metric, value, low, high, biased}.
        tied: Names of the others that are as good on the set that it was chosen on.
    """

    iteration: int
    step: int
    policy: str
    selection: Selection
    values: dict[str, dict[str, Any]]
    tied: tuple[str, ...]

    @property
    def biased(self) -> frozenset[str]:
        """The sets on which its values are biased by the choice."""
        return frozenset(label for label, one in self.values.items() if one["biased"])

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "policy": self.policy,
            "iteration": self.iteration,
            "step": self.step,
            "on": self.selection.on,
            "metric": self.selection.metric,
            "checkpoints": len(self.selection.values),
            "tied": list(self.tied),
            "values": self.values,
        }

    def sentence(self) -> str:
        """The choice and the values in one line, the biased one marked."""
        count = len(self.selection.values)
        of = f"best of {count} checkpoints" if count > 1 else "the only checkpoint"
        more = f" and {len(self.tied) - 3} more" if len(self.tied) > 3 else ""
        ties = f", as good as {', '.join(self.tied[:3])}{more}" if self.tied else ""
        values = [
            f"{label} {one['metric']} {one['value']:.1%}" + (f" ({BIASED})" if one["biased"] else "")
            for label, one in self.values.items()
        ]
        return f"{self.policy}, {of} by {self.selection.metric} on {self.selection.on}{ties}: {', '.join(values)}"


def selected(run: RunRecord) -> Selected | None:
    """The checkpoint that the config chooses; None where it asks for none, or nothing is evaluated yet.

    Candidates are every theta, and every snapshot that was evaluated; the base is none.

    Raises:
        StageError: The checkpoints were not evaluated alike.
    """
    asked = run.config.evaluate
    if asked.select_on is None:
        return None
    by = asked.select_by or "avg"
    found = _evaluated(run)
    there = {one: sets[asked.select_on] for one, sets in found.items() if asked.select_on in sets}
    if not there:
        return None
    chosen = select(there, asked.select_on, by)
    values = {}
    for label, summary in found[chosen.best].items():
        name = metric_name(summary, by)
        if name is not None:
            values[label] = {"metric": name, **summary[name], "biased": chosen.is_biased(label)}
    tied = tuple(checkpoint_name(run, *one) for one in chosen.tied[1:])
    return Selected(*chosen.best, checkpoint_name(run, *chosen.best), chosen, values, tied)


def read_selected(run: RunRecord) -> Selected | None:
    """The same for a page: what stands in the way becomes a note."""
    nothing: Selected | None = None
    return run.read("the choice of a checkpoint", lambda: selected(run), nothing)


def must_be_selected(run: RunRecord) -> Selected:
    """The same, where it cannot be done without.

    Raises:
        ConfigError: The config chooses none, or nothing is evaluated yet.
    """
    found = selected(run)
    if found is None and run.config.evaluate.select_on is None:
        labels = ", ".join(one.label for one in run.config.evaluate.sets)
        fix = f"start it again with --set evaluate.select_on=LABEL ({labels}): nothing is computed anew"
        raise ConfigError("the run's config does not say on which set to choose", field=run.name, fix=fix)
    if found is None:
        raise ConfigError("no checkpoint is evaluated yet", field=run.name, fix="let the run go on first")
    return found


def _evaluated(run: RunRecord) -> dict[tuple[int, int], dict[str, dict[str, Any]]]:
    """Summaries by set of every evaluated checkpoint."""
    found: dict[tuple[int, int], dict[str, dict[str, Any]]] = {}
    # The endpoint of vanilla RL is its last snapshot: one policy is one candidate.
    twice = run.config.explore.steps if run.config.arm == "vanilla-rl" else None
    for iteration in run.iterations:
        content = stored_evaluation(run, iteration)
        if content is None:
            continue
        by_step = {int(step): sets for step, sets in content["snapshots"].items() if int(step) != twice}
        found |= {(iteration, step): sets for step, sets in {**by_step, 0: content["sets"]}.items()}
    return found


def checkpoint_name(run: RunRecord, iteration: int, step: int) -> str:
    """ "theta_2", or "RL step 50 of iteration 1"."""
    return f"RL step {step} of iteration {iteration}" if step else run.policy_name(iteration)
