"""Analyse what each arm learnt, forgot and kept saying on one problem set, and compare the arms' forgetting."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from rloop_core.errors import RLoopError
from rloop_core.evaluation.bootstrap import Interval, interval
from rloop_core.evaluation.outcomes import check_same_problems
from rloop_core.results.analysis.similarity import Similarity, Units, similarity, words
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

Unit = Literal["words", "tokens"]
"""`words` of the text, separated by white space; `tokens` as the policy sampled them, the end of sequence too."""
SIMILARITY_PROBLEMS = 100
"""Most problems of a set over which similarity is averaged: its cost grows with the square of the trajectories."""
_COLUMNS: dict[Unit, str] = {"words": "completion", "tokens": "completion_ids"}
_BATCH_ROWS = 1024


@dataclass(frozen=True)
class ArmTransitions:
    """One arm on one set.

    Attributes:
        title: The arm.
        checkpoints: Rows and columns of the matrices.
        moved: Learning and forgetting, with their nulls.
        similarity: Similarity of solutions; None where the samples cannot be compared.
        histories: One for each problem.
        restarts: Whether each RL phase starts from the refined policy.
    """

    title: str
    checkpoints: list[Checkpoint]
    moved: Transitions
    similarity: Similarity | None
    histories: list[History]
    restarts: bool

    def kinds(self) -> dict[str, int]:
        """Count problems by the kind of their history."""
        return dict(Counter(history.kind for history in self.histories))


@dataclass(frozen=True)
class Blocks:
    """Forgetting of both arms at the same RL steps.

    Attributes:
        steps: RL steps, the rows and columns of the matrix.
        iterations: RLoop's iteration of each.
        observed: The differential matrix and the arms' means.
        chance: The same of the arms' nulls: what chance alone would give.
        intervals: `intra` and `inter`: the mean difference with its 95 % interval, paired over problems.
        equal: At how many of the steps the arms' weights are equal, byte for byte.
    """

    steps: list[int]
    iterations: list[int]
    observed: Differential
    chance: Differential
    intervals: dict[str, Interval]
    equal: int

    def rows(self) -> list[tuple[Any, ...]]:
        """Return (name, vanilla RL, by chance, RLoop, by chance, interval of the difference) of each block."""
        sides = ((self.observed.vanilla, self.chance.vanilla), (self.observed.rloop, self.chance.rloop))
        return [
            (name, *(means[place] for side in sides for means in side), self.intervals[name])
            for place, name in enumerate(("intra", "inter"))
            if name in self.intervals
        ]


@dataclass
class SetTransitions:
    """One problem set.

    Attributes:
        label: Its name.
        titles: Titles of the two arms, RLoop first.
        problems: Number of its problems.
        similarity_problems: Number of problems over which similarity is averaged.
        unit: What similarity compares pairs of: words or tokens.
        arms: Each arm that has at least two evaluated policies.
        blocks: Both arms' forgetting at equal RL steps; None where there are too few.
        notes: What is missing, and how to get it.
    """

    label: str
    titles: tuple[str, str]
    problems: int
    similarity_problems: int
    unit: Unit
    arms: list[ArmTransitions]
    blocks: Blocks | None
    notes: list[str] = field(default_factory=list)


def set_transitions(ours: Arm, theirs: Arm, rule: SolvedRule, seed: int, unit: Unit = "words") -> list[SetTransitions]:
    """Analyse every set that both arms are evaluated on; what cannot be had becomes a note.

    Args:
        ours: RLoop.
        theirs: What it is compared with.
        rule: What counts as solved.
        seed: Of the bootstrap, and of the problems drawn for similarity.
        unit: What similarity compares pairs of.
    """
    analysed = []
    for label in shared_sets(ours, theirs):
        notes: list[str] = []
        ids = ours.checkpoints[label][0].outcomes.problem_ids
        drawn = _drawn_problems(ids, seed)
        arms = [one for arm in (ours, theirs) if (one := _of_arm(arm, label, rule, drawn, unit, notes))]
        try:
            blocks = _blocks(ours, theirs, label, rule, seed, notes)
        except RLoopError as error:
            notes.append(f"The arms' forgetting on {label} cannot be compared: {error}")
            blocks = None
        titles = (ours.title, theirs.title)
        analysed.append(SetTransitions(label, titles, len(ids), len(drawn), unit, arms, blocks, notes))
    return analysed


def _of_arm(
    arm: Arm, label: str, rule: SolvedRule, drawn: frozenset[str], unit: Unit, notes: list[str]
) -> ArmTransitions | None:
    checkpoints = arm.checkpoints[label]
    outcomes = [checkpoint.outcomes for checkpoint in checkpoints]
    if len(checkpoints) < 2:
        notes.append(f"{arm.title} has a single evaluated policy on {label}: nothing to learn or forget between.")
        return None
    try:
        moved = transitions(outcomes, rule)
        told = histories(outcomes, [checkpoint.label for checkpoint in checkpoints], rule)
    except RLoopError as error:
        notes.append(f"{arm.title} on {label}: {error}")
        return None
    what = f"Similarity of {arm.title} on {label}"
    alike = arm.run.read(what, lambda: similarity(_solutions(checkpoints, drawn, unit)), None)
    return ArmTransitions(arm.title, checkpoints, moved, alike, told, arm.restarts)


def _blocks(ours: Arm, theirs: Arm, label: str, rule: SolvedRule, seed: int, notes: list[str]) -> Blocks | None:
    by_step = [{checkpoint.step: checkpoint for checkpoint in arm.snapshots(label)} for arm in (ours, theirs)]
    steps = sorted(by_step[0].keys() & by_step[1].keys())
    if len(steps) < 2:
        notes.append(
            f"No differential forgetting on {label}: the arms share {len(steps)} evaluated RL steps, and it takes two; "
            "give both the same explore.snapshot_every, and evaluate.snapshots=true."
        )
        return None
    if len(steps) < max(map(len, by_step)):
        notes.append(
            f"Differential forgetting on {label}: {len(steps)} RL steps are evaluated in both arms, others not."
        )
    mine, other = ([of_arm[step] for step in steps] for of_arm in by_step)
    check_same_problems(mine[0].outcomes.problem_ids, other[0].outcomes.problem_ids)
    rloop, vanilla = (transitions([checkpoint.outcomes for checkpoint in side], rule) for side in (mine, other))
    iterations = [checkpoint.iteration for checkpoint in mine]
    difference = _lost(other, rule) - _lost(mine, rule)
    return Blocks(
        steps,
        iterations,
        differential(vanilla, rloop, iterations),
        differential(_null(vanilla), _null(rloop), iterations),
        _intervals(difference, iterations, seed),
        sum(_weights(ours, a) == _weights(theirs, b) != "" for a, b in zip(mine, other, strict=True)),
    )


def _null(moved: Transitions) -> Transitions:
    """Put the null in the place of what was observed, so that both are averaged alike."""
    return Transitions(moved.rule, moved.problems, moved.null.T, moved.null, moved.null, moved.null_high)


def _lost(checkpoints: Sequence[Checkpoint], rule: SolvedRule) -> Matrix:
    """Return 1 where a problem was solved at i and not at j, else 0; shape [T, T, problems]."""
    solved = np.stack([rule(one.outcomes.n, one.outcomes.c) for one in checkpoints])
    return (solved[:, None] & ~solved[None, :]).astype(np.float64)


def _intervals(difference: Matrix, iterations: Sequence[int], seed: int) -> dict[str, Interval]:
    """Return the mean over cells within, and across, iterations; problems are resampled."""
    later = np.triu(np.ones(difference.shape[:2], dtype=bool), k=1)
    belongs = np.asarray(iterations)
    same = belongs[:, None] == belongs[None, :]
    cells = {"intra": later & same, "inter": later & ~same}
    return {name: interval(difference[mask].mean(axis=0), seed=seed) for name, mask in cells.items() if mask.any()}


def _weights(arm: Arm, checkpoint: Checkpoint) -> str:
    """Return the hashes of a snapshot's weights; empty where it was not kept."""
    phase = arm.run.config.explore.steps
    manifest = arm.run.manifest(checkpoint.iteration, "explore")
    folder = f"snapshots/step-{checkpoint.step - checkpoint.iteration * phase:06d}/"
    files = [entry for entry in manifest.files if entry.path.startswith(folder)] if manifest else []
    return " ".join(sorted(entry.sha256 for entry in files if entry.path.endswith(".safetensors")))


def _drawn_problems(ids: Sequence[str], seed: int) -> frozenset[str]:
    """Return the problems that similarity is averaged over: all, or `SIMILARITY_PROBLEMS` without replacement."""
    if len(ids) <= SIMILARITY_PROBLEMS:
        return frozenset(ids)
    drawn = np.random.default_rng(seed).choice(len(ids), SIMILARITY_PROBLEMS, replace=False)
    return frozenset(ids[place] for place in drawn)


def _solutions(
    checkpoints: Sequence[Checkpoint], problem_ids: frozenset[str], unit: Unit
) -> Iterator[list[list[Units]]]:
    """Yield every checkpoint's trajectories as units, problem by problem in the order of ids.

    Rows stay in Arrow's memory, which holds a token in four bytes, and become Python's one problem at a time.
    """
    stored = [_rows(checkpoint, problem_ids, _COLUMNS[unit]) for checkpoint in checkpoints]
    for problem in sorted(problem_ids):
        samples = [column.take(places.get(problem, [])).to_pylist() for column, places in stored]
        yield [[words(text) for text in side] for side in samples] if unit == "words" else samples


def _rows(checkpoint: Checkpoint, problem_ids: frozenset[str], column: str) -> tuple[Any, dict[str, list[int]]]:
    """Return one column of a checkpoint's samples of these problems, and each problem's places in it."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    wanted = pa.array(sorted(problem_ids))
    kept = []
    for path in checkpoint.files:
        with pq.ParquetFile(path) as file:
            batches = file.iter_batches(batch_size=_BATCH_ROWS, columns=["problem_id", column])
            kept += [batch.filter(pc.is_in(batch["problem_id"], value_set=wanted)) for batch in batches]
    table = pa.Table.from_batches(kept)
    places: dict[str, list[int]] = {}
    for place, problem in enumerate(table["problem_id"].to_pylist()):
        places.setdefault(problem, []).append(place)
    return table[column], places
