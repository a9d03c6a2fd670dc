"""Both arms of a comparison as plain data: every evaluated policy on one axis of RL steps, and what it achieved."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rloop_core.evaluation.metrics import avg_at_k
from rloop_core.evaluation.outcomes import Outcomes, problem_outcomes
from rloop_core.results.run_record import UNREADABLE, RunRecord, rl_steps, sample_files, stored_evaluation
from rloop_core.store import BASE_ITERATION

_ROUNDING = 1e-9


@dataclass(frozen=True)
class Checkpoint:
    """One evaluated policy on one problem set.

    Attributes:
        step: RL steps behind it since theta_0; theta_{i+1} has as many as the end of phase i.
        iteration: The iteration that it came out of; -1 for theta_0.
        kind: `base`, `snapshot` (within an RL phase), `theta` (after RFT), or `endpoint` (of vanilla RL).
        label: "base", "step 50", "theta_1".
        summary: Its stored metrics: name to {value, low, high}, and more.
        outcomes: Its correct samples by problem.
        files: The parquet files that hold the samples.
    """

    step: int
    iteration: int
    kind: str
    label: str
    summary: dict[str, Any]
    outcomes: Outcomes
    files: tuple[Path, ...]


@dataclass(frozen=True)
class Arm:
    """One run, as the comparison needs it.

    Attributes:
        title: What figures and tables call it.
        run: The run.
        steps: One row an RL step, as `rl_steps` gives them.
        checkpoints: By problem set, in the order of training; sets without an evaluation are left out.
    """

    title: str
    run: RunRecord
    steps: list[dict[str, Any]]
    checkpoints: dict[str, list[Checkpoint]] = field(default_factory=dict)

    def base(self, label: str) -> Checkpoint | None:
        """theta_0's evaluation on a set."""
        return next((one for one in self.checkpoints.get(label, ()) if one.kind == "base"), None)

    def final(self, label: str) -> Checkpoint | None:
        """What the run ended with, as far as it has come: its last theta, or the endpoint of vanilla RL."""
        found = [one for one in self.checkpoints.get(label, ()) if one.kind in ("theta", "endpoint")]
        return found[-1] if found else None

    def snapshots(self, label: str) -> list[Checkpoint]:
        """The policies within RL phases and at their ends, that is, without theta_0 and what RFT made."""
        return [one for one in self.checkpoints.get(label, ()) if one.kind in ("snapshot", "endpoint")]

    @property
    def restarts(self) -> bool:
        """Whether each RL phase starts from the refined policy: not in vanilla RL, nor without re-initialisation."""
        return self.run.config.arm == "rloop" and self.run.config.explore.start == "theta"

    @property
    def total_steps(self) -> int:
        """RL steps that the config asks for."""
        return self.run.config.iterations * self.run.config.explore.steps


def read_arms(ours: RunRecord, theirs: RunRecord) -> tuple[Arm, Arm]:
    """Both runs' checkpoints and RL steps; what is missing becomes a note of its run."""
    names = {"rloop": "RLoop", "vanilla-rl": "RL"}
    alike = ours.config.arm == theirs.config.arm
    titles = [run.name if alike else names[run.config.arm] for run in (ours, theirs)]
    if ours.name == theirs.name:
        titles[1] += " (again)"
    first, second = (read_arm(title, run) for title, run in zip(titles, (ours, theirs), strict=True))
    for arm in (first, second):
        _note_what_is_missing(arm)
    return first, second


def read_arm(title: str, run: RunRecord) -> Arm:
    """One run's checkpoints and RL steps."""
    return Arm(title, run, rl_steps(run), _checkpoints(run))


def shared_sets(ours: Arm, theirs: Arm) -> list[str]:
    """Problem sets on which both arms have an evaluation, in the first one's order."""
    return [label for label in ours.checkpoints if label in theirs.checkpoints]


def _checkpoints(run: RunRecord) -> dict[str, list[Checkpoint]]:
    contents = {i: found for i in (BASE_ITERATION, *run.iterations) if (found := stored_evaluation(run, i))}
    by_set: dict[str, list[Checkpoint]] = {}
    for label in (source.label for source in run.config.evaluate.sets):
        left_out: dict[str, list[str]] = {}
        own = [one for i, content in contents.items() for one in _of(run, i, content, label, left_out)]
        for why, names in left_out.items():
            run.note(f"{run.name}: {', '.join(names)} on {label} cannot be used, for {why}.")
        if own:
            by_set[label] = own
    return by_set


def _of(
    run: RunRecord, iteration: int, content: dict[str, Any], label: str, left_out: dict[str, list[str]]
) -> list[Checkpoint]:
    """An iteration's snapshots by RL step, then what it ended with; policies that cannot be used by the reason why."""
    phase = run.config.explore.steps
    vanilla = run.config.arm == "vanilla-rl"
    found: list[Checkpoint] = []

    def add(step: int, kind: str, name: str, summary: dict[str, Any], files: list[Path]) -> None:
        try:
            outcomes = _outcomes(summary, files)
        except UNREADABLE as error:
            left_out.setdefault(str(error), []).append(name)
        else:
            found.append(Checkpoint(step, iteration, kind, name, summary, outcomes, tuple(files)))

    for step, summaries in sorted((int(step), one) for step, one in content["snapshots"].items()):
        # The endpoint of vanilla RL is its last snapshot, drawn a second time: one policy is one checkpoint.
        if label in summaries and not (vanilla and step == phase):
            total = iteration * phase + step
            add(total, "snapshot", f"step {total}", summaries[label], sample_files(run, iteration, label, step))
    if label in content["sets"]:
        kind = "base" if iteration == BASE_ITERATION else "endpoint" if vanilla else "theta"
        name = f"step {phase}" if kind == "endpoint" else run.policy_name(iteration)
        add((iteration + 1) * phase, kind, name, content["sets"][label], sample_files(run, iteration, label))
    return found


def _outcomes(summary: dict[str, Any], files: list[Path]) -> Outcomes:
    """Raises one of `UNREADABLE` where the samples cannot be had, or are not those of the summary."""
    outcomes = problem_outcomes(files)
    stored = summary.get(outcomes.avg_name, {}).get("value")
    counted = float(avg_at_k(outcomes.n, outcomes.c).mean())
    if stored is None or abs(stored - counted) > _ROUNDING:
        said = "has none" if stored is None else f"says {stored:.4f}"
        raise ValueError(f"the samples give {outcomes.avg_name} = {counted:.4f} and the stored summary {said}")
    return outcomes


def _note_what_is_missing(arm: Arm) -> None:
    run, config = arm.run, arm.run.config
    again = f"start {run.name} again"
    if not config.evaluate.sets:
        run.note(f"{run.name} is evaluated on no problem set: set evaluate.sets and {again}.")
        return
    missing = [one.label for one in config.evaluate.sets if not arm.final(one.label)]
    if missing:
        run.note(f"{run.name} has no evaluated final policy on {', '.join(missing)} yet: {again}, and it goes on.")
    if not any(one.kind == "snapshot" for found in arm.checkpoints.values() for one in found):
        anew = "" if config.explore.snapshot_every else " explore.snapshot_every=N (exploration is then computed anew),"
        run.note(
            f"{run.name} has no evaluated snapshots, so nothing is known of what happened between its other policies: "
            f"set{anew} evaluate.snapshots=true and {again}."
        )
    last = max((one.iteration for found in arm.checkpoints.values() for one in found), default=BASE_ITERATION)
    if config.arm == "rloop" and BASE_ITERATION < last < config.iterations - 1:
        run.note(
            f"{run.name} has come to theta_{last + 1} of {config.iterations}: fewer RL steps than it is compared at."
        )
