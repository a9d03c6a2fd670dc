"""The checkpoint that a run's config chooses (`evaluate.select_on`), with its value on every set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rloop_core.errors import ConfigError
from rloop_core.evaluation.metrics import metric_name
from rloop_core.evaluation.selection import BIASED, Selection, select
from rloop_core.results.run_record import RunRecord, stored_evaluation


@dataclass(frozen=True)
class Selected:
    """The best checkpoint of a run.

    Attributes:
        iteration, step: Its place; step 0 is the policy that the iteration ended with.
        policy: "theta_2", or "RL step 50 of iteration 1".
        selection: How it was chosen.
        values: Set label to {metric, value, low, high, biased}.
        tied: Names of the others that are as good on the set of the choice.
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
        return frozenset(label for label, value in self.values.items() if value["biased"])

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
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
        """Return the choice and the values in one line, the biased one marked."""
        count = len(self.selection.values)
        rank = f"best of {count} checkpoints" if count > 1 else "the only checkpoint"
        more = f" and {len(self.tied) - 3} more" if len(self.tied) > 3 else ""
        ties = f", as good as {', '.join(self.tied[:3])}{more}" if self.tied else ""
        values = [
            f"{label} {value['metric']} {value['value']:.1%}" + (f" ({BIASED})" if value["biased"] else "")
            for label, value in self.values.items()
        ]
        return f"{self.policy}, {rank} by {self.selection.metric} on {self.selection.on}{ties}: {', '.join(values)}"


def selected(run: RunRecord) -> Selected | None:
    """Return the checkpoint that the config chooses; None if it asks for none, or nothing is evaluated yet.

    Candidates are every theta, and every snapshot that was evaluated, but not the base.

    Raises:
        StageError: The checkpoints were not evaluated alike.
    """
    config = run.config.evaluate
    if config.select_on is None:
        return None
    by = config.select_by or "avg"
    summaries = _summaries(run)
    candidates = {place: sets[config.select_on] for place, sets in summaries.items() if config.select_on in sets}
    if not candidates:
        return None
    selection = select(candidates, config.select_on, by)
    values = {}
    for label, summary in summaries[selection.best].items():
        name = metric_name(summary, by)
        if name is not None:
            values[label] = {"metric": name, **summary[name], "biased": selection.is_biased(label)}
    best, *tied = (checkpoint_name(run, *place) for place in selection.tied)
    return Selected(*selection.best, best, selection, values, tuple(tied))


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


def _summaries(run: RunRecord) -> dict[tuple[int, int], dict[str, dict[str, Any]]]:
    """Return the summaries by set of every evaluated checkpoint."""
    summaries: dict[tuple[int, int], dict[str, dict[str, Any]]] = {}
    # The endpoint of vanilla RL is its last snapshot: one policy is one candidate.
    endpoint = run.config.explore.steps if run.config.arm == "vanilla-rl" else None
    for iteration in run.iterations:
        content = stored_evaluation(run, iteration)
        if content is not None:
            snapshots = {int(step): sets for step, sets in content["snapshots"].items() if int(step) != endpoint}
            summaries |= {(iteration, step): sets for step, sets in {**snapshots, 0: content["sets"]}.items()}
    return summaries


def checkpoint_name(run: RunRecord, iteration: int, step: int) -> str:
    """Return "theta_2", or "RL step 50 of iteration 1"."""
    return f"RL step {step} of iteration {iteration}" if step else run.policy_name(iteration)
