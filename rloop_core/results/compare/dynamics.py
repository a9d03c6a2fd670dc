"""What each arm learnt, forgot and kept saying on one problem set, and the two arms' forgetting side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from rloop_core.errors import RLoopError
from rloop_core.evaluation.bootstrap import Interval, interval
from rloop_core.evaluation.outcomes import check_same_problems
from rloop_core.results.analysis.similarity import Similarity
from rloop_core.results.analysis.transitions import (
    Differential,
    History,
    Matrix,
    SolvedRule,
    Transitions,
    differential,
    histories,
    transitions,
)
from rloop_core.results.compare.arms import Arm, Checkpoint, shared_sets
from rloop_core.results.compare.similarity import Unit, drawn_problems, similarity_of


@dataclass(frozen=True)
class ArmDynamics:
    """One arm on one set.

    Attributes:
        title: The arm.
        checkpoints: Rows and columns of the matrices.
        moved: Learning and forgetting, with their nulls.
        alike: Similarity; None where the samples cannot be compared.
        histories: One a problem.
        restarts: Whether each RL phase starts from the refined policy.
    """

    title: str
    checkpoints: list[Checkpoint]
    moved: Transitions
    alike: Similarity | None
    histories: list[History]
    restarts: bool

    def kinds(self) -> dict[str, int]:
        """Problems by the kind of their history."""
        return dict(Counter(one.kind for one in self.histories))


@dataclass(frozen=True)
class Blocks:
    """Forgetting of both arms at the same RL steps.

    Attributes:
        steps: RL steps, the rows and columns of the matrix.
        iterations: RLoop's iteration of each.
        found: The differential matrix and the arms' means.
        chance: The same of the arms' nulls: what chance alone would give.
        intervals: `intra` and `inter`: the mean difference with its 95 % interval, paired over problems.
        equal: At how many of the steps the arms' policies are equal, byte for byte.
    """

    steps: list[int]
    iterations: list[int]
    found: Differential
    chance: Differential
    intervals: dict[str, Interval]
    equal: int


@dataclass
class SetDynamics:
    """One problem set.

    Attributes:
        label: Its name.
        titles: What the two arms are called, RLoop first.
        problems: Its problems.
        similarity_problems: Over how many of them similarity is averaged.
        unit: What it compares pairs of: words or tokens.
        arms: Each arm that has at least two evaluated policies.
        blocks: Both arms' forgetting at equal RL steps; None where there are too few.
        notes: What is missing, and how to get it.
    """

    label: str
    titles: tuple[str, str]
    problems: int
    similarity_problems: int
    unit: Unit
    arms: list[ArmDynamics]
    blocks: Blocks | None
    notes: list[str] = field(default_factory=list)


def dynamics(ours: Arm, theirs: Arm, rule: SolvedRule, seed: int, unit: Unit = "words") -> list[SetDynamics]:
    """Analyse every set that both arms are evaluated on; what cannot be had becomes a note."""
    return [_of_set(ours, theirs, label, rule, seed, unit) for label in shared_sets(ours, theirs)]


def _of_set(ours: Arm, theirs: Arm, label: str, rule: SolvedRule, seed: int, unit: Unit) -> SetDynamics:
    notes: list[str] = []
    ids = ours.checkpoints[label][0].outcomes.problem_ids
    chosen = drawn_problems(ids, seed)
    arms = [found for arm in (ours, theirs) if (found := _of_arm(arm, label, rule, chosen, unit, notes))]
    try:
        blocks = _blocks(ours, theirs, label, rule, seed, notes)
    except RLoopError as error:
        notes.append(f"The arms' forgetting on {label} cannot be compared: {error}")
        blocks = None
    return SetDynamics(label, (ours.title, theirs.title), len(ids), len(chosen), unit, arms, blocks, notes)


def _of_arm(
    arm: Arm, label: str, rule: SolvedRule, chosen: frozenset[str], unit: Unit, notes: list[str]
) -> ArmDynamics | None:
    checkpoints = arm.checkpoints[label]
    outcomes = [one.outcomes for one in checkpoints]
    names = [one.label for one in checkpoints]
    if len(checkpoints) < 2:
        notes.append(f"{arm.title} has a single evaluated policy on {label}: nothing to learn or forget between.")
        return None
    try:
        moved, told = transitions(outcomes, rule), histories(outcomes, names, rule)
    except RLoopError as error:
        notes.append(f"{arm.title} on {label}: {error}")
        return None
    what = f"Similarity of {arm.title} on {label}"
    alike = arm.run.read(what, lambda: similarity_of(checkpoints, chosen, unit), None)
    return ArmDynamics(arm.title, checkpoints, moved, alike, told, arm.restarts)


def _blocks(ours: Arm, theirs: Arm, label: str, rule: SolvedRule, seed: int, notes: list[str]) -> Blocks | None:
    mine = {one.step: one for one in ours.snapshots(label)}
    other = {one.step: one for one in theirs.snapshots(label)}
    steps = sorted(mine.keys() & other.keys())
    if len(steps) < 2:
        notes.append(
            f"No differential forgetting on {label}: the arms share {len(steps)} evaluated RL steps, and it takes two; "
            "give both the same explore.snapshot_every, and evaluate.snapshots=true."
        )
        return None
    if len(steps) < max(len(mine), len(other)):
        notes.append(
            f"Differential forgetting on {label}: {len(steps)} RL steps are evaluated in both arms, others not."
        )
    pairs = [[side[step] for step in steps] for side in (mine, other)]
    check_same_problems(*(side[0].outcomes.problem_ids for side in pairs))
    moved = [transitions([one.outcomes for one in side], rule) for side in pairs]
    iterations = [one.iteration for one in pairs[0]]
    found = differential(moved[1], moved[0], iterations)
    chance = differential(_null(moved[1]), _null(moved[0]), iterations)
    lost = [_lost(side, rule) for side in reversed(pairs)]
    equal = sum(_weights(ours, a) == _weights(theirs, b) != "" for a, b in zip(*pairs, strict=True))
    return Blocks(steps, iterations, found, chance, _intervals(lost[0] - lost[1], iterations, seed), equal)


def _null(moved: Transitions) -> Transitions:
    """The null in the place of what was found, so that both are averaged alike."""
    return Transitions(moved.rule, moved.problems, moved.null.T, moved.null, moved.null, moved.null_high)


def _lost(checkpoints: Sequence[Checkpoint], rule: SolvedRule) -> Matrix:
    """Whether each problem was solved at i and not at j, shape [T, T, problems]."""
    solved = np.stack([rule(one.outcomes.n, one.outcomes.c) for one in checkpoints])
    return (solved[:, None] & ~solved[None, :]).astype(np.float64)


def _intervals(difference: Matrix, iterations: Sequence[int], seed: int) -> dict[str, Interval]:
    """Of the mean over cells within, and across, iterations; problems are resampled."""
    later = np.triu(np.ones(difference.shape[:2], dtype=bool), k=1)
    belongs = np.asarray(iterations)
    same = belongs[:, None] == belongs[None, :]
    cells = {"intra": later & same, "inter": later & ~same}
    return {name: interval(difference[mask].mean(axis=0), seed=seed) for name, mask in cells.items() if mask.any()}


def _weights(arm: Arm, checkpoint: Checkpoint) -> str:
    """Hashes of a snapshot's weights; empty where it was not kept."""
    phase = arm.run.config.explore.steps
    manifest = arm.run.manifest(checkpoint.iteration, "explore")
    folder = f"snapshots/step-{checkpoint.step - checkpoint.iteration * phase:06d}/"
    files = manifest.files if manifest else ()
    return " ".join(
        sorted(one.sha256 for one in files if one.path.startswith(folder) and one.path.endswith(".safetensors"))
    )
