"""Analyse what each arm learnt, forgot and kept saying on one problem set, and compare the arms' forgetting."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from rloop_core.errors import RLoopError
from rloop_core.evaluation.outcomes import check_same_problems
from rloop_core.results.analysis.similarity import Similarity, Units, similarity, words
from rloop_core.results.analysis.transitions import (
    History,
    Matrix,
    SolvedRule,
    Transitions,
    histories,
    transitions,
)
from rloop_core.results.report.trajectories import batches_of
from rloop_core.results.study.arms import Arm, Checkpoint
from rloop_core.results.study.forgetting import BLOCKS, Forgetting, forgetting
from rloop_core.results.study.record import StudyRecord

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
        steps: RL steps, the rows and columns of the matrices.
        iterations: RLoop's iteration of each.
        observed: Forgetting of the second arm minus that of the first, shape [steps, steps]; nan but from an earlier to
            a later step. Positive where RLoop forgets less.
        chance: The same of the arms' nulls: what chance alone would give.
        forgetting: Means over the cells within and across iterations, paired over problems: a row an arm and block.
        equal: At how many of the steps the arms' weights are equal, byte for byte.
    """

    steps: list[int]
    iterations: list[int]
    observed: Matrix
    chance: Matrix
    forgetting: list[Forgetting]
    equal: int


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


def set_transitions(record: StudyRecord, rule: SolvedRule, unit: Unit = "words") -> list[SetTransitions]:
    """Analyse every set that both arms are evaluated on; what cannot be had becomes a note.

    Args:
        record: RLoop and what it is compared with; its seed of the bootstrap draws the problems for similarity too.
        rule: What counts as solved.
        unit: What similarity compares pairs of.
    """
    analysed = []
    ours, theirs = (record.runs(arm)[0] for arm in record.pair)
    for label in record.sets:
        notes: list[str] = []
        ids = ours.checkpoints[label][0].outcomes.problem_ids
        drawn = _drawn_problems(ids, record.resampling)
        arms = [one for arm in (ours, theirs) if (one := _of_arm(arm, label, rule, drawn, unit, notes))]
        try:
            blocks = _blocks(record, label, rule, notes)
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


def _blocks(record: StudyRecord, label: str, rule: SolvedRule, notes: list[str]) -> Blocks | None:
    ours, theirs = (record.runs(arm)[0] for arm in record.pair)
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
    later = np.triu(np.ones(rloop.forgetting.shape, dtype=bool), k=1)
    return Blocks(
        steps,
        [checkpoint.iteration for checkpoint in mine],
        np.where(later, vanilla.forgetting - rloop.forgetting, np.nan),
        np.where(later, vanilla.null - rloop.null, np.nan),
        forgetting(record, rule, [label], BLOCKS),
        sum(_weights(ours, a) == _weights(theirs, b) != "" for a, b in zip(mine, other, strict=True)),
    )


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
    return frozenset(ids[index] for index in drawn)


def _solutions(
    checkpoints: Sequence[Checkpoint], problem_ids: frozenset[str], unit: Unit
) -> Iterator[list[list[Units]]]:
    """Yield every checkpoint's trajectories as units, problem by problem in the order of ids.

    Rows stay in Arrow's memory, which holds a token in four bytes, and become Python's one problem at a time.
    """
    stored = [_rows(checkpoint, problem_ids, _COLUMNS[unit]) for checkpoint in checkpoints]
    for problem in sorted(problem_ids):
        samples = [column.take(rows.get(problem, [])).to_pylist() for column, rows in stored]
        yield [[words(text) for text in side] for side in samples] if unit == "words" else samples


def _rows(checkpoint: Checkpoint, problem_ids: frozenset[str], column: str) -> tuple[Any, dict[str, list[int]]]:
    """Return one column of a checkpoint's samples of these problems, and each problem's rows in it."""
    import pyarrow as pa

    columns = ("problem_id", column)
    table = pa.Table.from_batches(list(batches_of(checkpoint.files, columns, _BATCH_ROWS, problem_ids)))
    rows: dict[str, list[int]] = {}
    for index, problem in enumerate(table["problem_id"].to_pylist()):
        rows.setdefault(problem, []).append(index)
    return table[column], rows
