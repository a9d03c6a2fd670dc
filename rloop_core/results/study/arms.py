"""Read the evaluated policies of a run and place them on one axis of RL steps."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rloop_core.evaluation.metrics import avg_at_k
from rloop_core.evaluation.outcomes import Outcomes, problem_outcomes
from rloop_core.results.run_reader import UNREADABLE, RunRecord, rl_steps, sample_files, stored_evaluation
from rloop_core.store import BASE_ITERATION

_ROUNDING = 1e-9


@dataclass(frozen=True)
class Checkpoint:
    """One evaluated policy on one problem set.

    Attributes:
        step: RL steps since theta_0; theta_{i+1} has as many as the end of phase i.
        iteration: The iteration that made it; -1 for theta_0.
        kind: `base`, `snapshot` (within an RL phase), `theta` (after RFT), or `endpoint` (of vanilla RL).
        label: "base", "step 50", "theta_1".
        summary: Stored metrics: name to {value, low, high}, and more.
        outcomes: Correct samples by problem.
        files: Parquet files with the samples.
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
    """One run of a comparison or a study.

    Attributes:
        title: Name in figures and tables.
        run: The run.
        steps: One row an RL step, see `rl_steps`.
        checkpoints: Evaluated policies by problem set, in the order of training; sets without any are left out.
    """

    title: str
    run: RunRecord
    steps: list[dict[str, Any]]
    checkpoints: dict[str, list[Checkpoint]] = field(default_factory=dict)

    def final(self, label: str) -> Checkpoint | None:
        """Return the last theta, or the endpoint of vanilla RL, that is evaluated on a set."""
        ends = [one for one in self.checkpoints.get(label, ()) if one.kind in ("theta", "endpoint")]
        return ends[-1] if ends else None

    def snapshots(self, label: str) -> list[Checkpoint]:
        """Return the policies within RL phases and at their ends: neither theta_0 nor policies after RFT."""
        return [one for one in self.checkpoints.get(label, ()) if one.kind in ("snapshot", "endpoint")]

    @property
    def restarts(self) -> bool:
        """Return True if each RL phase starts from the refined policy: vanilla RL and one ablation do not."""
        return self.run.config.arm == "rloop" and self.run.config.explore.start == "theta"

    @property
    def total_steps(self) -> int:
        """RL steps that the config asks for."""
        return self.run.config.iterations * self.run.config.explore.steps


def read_arms(ours: RunRecord, theirs: RunRecord) -> tuple[Arm, Arm]:
    """Read the checkpoints and RL steps of both runs; what is missing becomes a note of its run."""
    names = {"rloop": "RLoop", "vanilla-rl": "RL"}
    same_kind = ours.config.arm == theirs.config.arm
    titles = [run.name if same_kind else names[run.config.arm] for run in (ours, theirs)]
    if ours.name == theirs.name:
        titles[1] += " (again)"
    arms = read_arm(titles[0], ours), read_arm(titles[1], theirs)
    for arm in arms:
        _note_missing(arm)
    return arms


def read_arm(title: str, run: RunRecord) -> Arm:
    """Read the checkpoints and RL steps of one run."""
    return Arm(title, run, rl_steps(run), _checkpoints(run))


def shared_sets(ours: Arm, theirs: Arm) -> list[str]:
    """Return the problem sets on which both arms have an evaluation, in the first arm's order."""
    return [label for label in ours.checkpoints if label in theirs.checkpoints]


def _checkpoints(run: RunRecord) -> dict[str, list[Checkpoint]]:
    evaluations = {i: content for i in (BASE_ITERATION, *run.iterations) if (content := stored_evaluation(run, i))}
    by_set: dict[str, list[Checkpoint]] = {}
    for label in (source.label for source in run.config.evaluate.sets):
        unusable: dict[str, list[str]] = {}
        checkpoints = [
            checkpoint
            for i, content in evaluations.items()
            for checkpoint in _of_iteration(run, i, content, label, unusable)
        ]
        for reason, names in unusable.items():
            run.note(f"{run.name}: {', '.join(names)} on {label} cannot be used, for {reason}.")
        if checkpoints:
            by_set[label] = checkpoints
    return by_set


def _of_iteration(
    run: RunRecord, iteration: int, content: dict[str, Any], label: str, unusable: dict[str, list[str]]
) -> list[Checkpoint]:
    """Return the snapshots by RL step, then the final policy; names of unusable policies are added by reason."""
    phase = run.config.explore.steps
    vanilla = run.config.arm == "vanilla-rl"
    checkpoints: list[Checkpoint] = []

    def add(step: int, kind: str, name: str, summary: dict[str, Any], files: list[Path]) -> None:
        try:
            outcomes = _outcomes(summary, files)
        except UNREADABLE as error:
            unusable.setdefault(str(error), []).append(name)
        else:
            checkpoints.append(Checkpoint(step, iteration, kind, name, summary, outcomes, tuple(files)))

    for step, summaries in sorted((int(step), summaries) for step, summaries in content["snapshots"].items()):
        # The endpoint of vanilla RL is its last snapshot, sampled a second time: one policy is one checkpoint.
        if label in summaries and not (vanilla and step == phase):
            total = iteration * phase + step
            add(total, "snapshot", f"step {total}", summaries[label], sample_files(run, iteration, label, step))
    if label in content["sets"]:
        kind = "base" if iteration == BASE_ITERATION else "endpoint" if vanilla else "theta"
        name = f"step {phase}" if kind == "endpoint" else run.policy_name(iteration)
        add((iteration + 1) * phase, kind, name, content["sets"][label], sample_files(run, iteration, label))
    return checkpoints


def _outcomes(summary: dict[str, Any], files: list[Path]) -> Outcomes:
    """Raise one of `UNREADABLE` if the samples cannot be read or do not give the stored summary."""
    outcomes = problem_outcomes(files)
    stored = summary.get(outcomes.avg_name, {}).get("value")
    counted = float(avg_at_k(outcomes.n, outcomes.c).mean())
    if stored is None or abs(stored - counted) > _ROUNDING:
        claim = "has none" if stored is None else f"says {stored:.4f}"
        raise ValueError(f"the samples give {outcomes.avg_name} = {counted:.4f} and the stored summary {claim}")
    return outcomes


def _note_missing(arm: Arm) -> None:
    run, config = arm.run, arm.run.config
    again = f"start {run.name} again"
    if not config.evaluate.sets:
        run.note(f"{run.name} is evaluated on no problem set: set evaluate.sets and {again}.")
        return
    missing = [source.label for source in config.evaluate.sets if not arm.final(source.label)]
    if missing:
        run.note(f"{run.name} has no evaluated final policy on {', '.join(missing)} yet: {again}, and it goes on.")
    checkpoints = [checkpoint for of_set in arm.checkpoints.values() for checkpoint in of_set]
    if not any(checkpoint.kind == "snapshot" for checkpoint in checkpoints):
        recompute = (
            "" if config.explore.snapshot_every else " explore.snapshot_every=N (exploration is then computed anew),"
        )
        run.note(
            f"{run.name} has no evaluated snapshots, so nothing is known of what happened between its other policies: "
            f"set{recompute} evaluate.snapshots=true and {again}."
        )
    last = max((checkpoint.iteration for checkpoint in checkpoints), default=BASE_ITERATION)
    if config.arm == "rloop" and BASE_ITERATION < last < config.iterations - 1:
        run.note(
            f"{run.name} has come to theta_{last + 1} of {config.iterations}: fewer RL steps than it is compared at."
        )
