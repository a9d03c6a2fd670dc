"""How alike an arm's solutions are: a set's samples, read problem by problem as words or as token ids."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, get_args

import numpy as np

from rloop_core.results.analysis.similarity import Similarity, Units, similarity, words
from rloop_core.results.compare.arms import Checkpoint

Unit = Literal["words", "tokens"]
"""`words` of the text, told apart by white space; `tokens` as the policy sampled them, the end of sequence too."""
UNITS: tuple[Unit, ...] = get_args(Unit)

SIMILARITY_PROBLEMS = 100
"""Most problems of a set over which similarity is averaged: its cost grows with the square of the trajectories."""
_COLUMNS: dict[Unit, str] = {"words": "completion", "tokens": "completion_ids"}
_BATCH_ROWS = 1024


def drawn_problems(ids: Sequence[str], seed: int) -> frozenset[str]:
    """The problems that similarity is averaged over: all of them, or so many drawn without replacement."""
    if len(ids) <= SIMILARITY_PROBLEMS:
        return frozenset(ids)
    drawn = np.random.default_rng(seed).choice(len(ids), SIMILARITY_PROBLEMS, replace=False)
    return frozenset(ids[place] for place in drawn)


def similarity_of(checkpoints: Sequence[Checkpoint], problem_ids: frozenset[str], unit: Unit = "words") -> Similarity:
    """The similarity matrix of these checkpoints over these problems.

    Raises:
        StageError: A checkpoint has no sample of one of them.
    """
    return similarity(solutions(checkpoints, problem_ids, unit))


def solutions(
    checkpoints: Sequence[Checkpoint], problem_ids: frozenset[str], unit: Unit
) -> Iterator[list[list[Units]]]:
    """For each problem, in the order of their ids, every checkpoint's trajectories as units.

    Rows stay in Arrow's memory, which holds a token in four bytes, and become Python's one problem at a time.
    """
    stored = [_rows(one, problem_ids, _COLUMNS[unit]) for one in checkpoints]
    for problem in sorted(problem_ids):
        found = [column.take(places.get(problem, [])).to_pylist() for column, places in stored]
        yield [[words(text) for text in side] for side in found] if unit == "words" else found


def _rows(checkpoint: Checkpoint, problem_ids: frozenset[str], column: str) -> tuple[Any, dict[str, list[int]]]:
    """One column of a checkpoint's samples of these problems, and each problem's places in it."""
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
