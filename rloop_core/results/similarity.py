"""Similarity of the solutions of two checkpoints (paper section 3.2, appendix A): mean bigram Jaccard of N x N pairs.

One sparse matrix a problem, a row for each of its T x N trajectories and a column for each bigram: its product with its
own transpose counts every pair's shared bigrams at once. Problems are taken one at a time, so memory does not depend on
their number.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import Any

import numpy as np

from rloop_core.errors import StageError
from rloop_core.evaluation.metrics import Floats
from rloop_core.results.frame import Results
from rloop_core.results.trajectories import batches_of

Units = Sequence[Hashable]
"""A trajectory as words, or as anything that can be compared."""
MOST_PROBLEMS = 100
"""Most problems of a set over which similarity is averaged: its cost grows with the square of the trajectories."""
_BATCH_ROWS = 1024


@dataclass(frozen=True, slots=True, eq=False)
class Similarity:
    """Mean similarity between checkpoints, shape [T, T]."""

    with_self_pairs: Floats
    """The paper's mean over all N x N pairs. Its diagonal holds each trajectory against itself: about 1/N more."""
    without_self_pairs: Floats
    """The same, but its diagonal is over distinct trajectories (nan for N = 1)."""
    problems: int
    """Number of problems averaged over."""


def words(text: str) -> list[str]:
    """Return a trajectory's units by default: runs of anything but white space."""
    return text.split()


def solutions_similarity(results: Results, label: str, arm: str, seed: int) -> Similarity | None:
    """Return the similarity of the solutions of an arm's policies on a set; None, with a note, if they cannot be read.

    The problems are all of them, or `MOST_PROBLEMS` drawn with the seed of the bootstrap.
    """
    files = [results.files[label, arm, seed, policy] for policy in results.policies(label, arm, seed)]
    ids = results.problems[label]
    drawn = frozenset(ids)
    if len(ids) > MOST_PROBLEMS:
        chosen = np.random.default_rng(results.resampling).choice(len(ids), MOST_PROBLEMS, replace=False)
        drawn = frozenset(ids[index] for index in chosen)
    what = f"Similarity of {results.titles[arm]} on {label}"
    return results.runs[arm, seed].read(what, lambda: similarity(_solutions(files, drawn)), None)


def similarity(problems: Iterable[Sequence[Sequence[Units]]]) -> Similarity:
    """Return the similarity matrices of T checkpoints.

    Args:
        problems: For each problem, T lists of N trajectories; read once, one at a time. N may differ. A trajectory of
            fewer than 2 units has no bigram: its similarity is 1.0 with another such one, and 0.0 with any other.

    Raises:
        StageError: There are no problems, or a problem lacks a checkpoint's trajectories.
    """
    total: Floats | None = None  # shape [2, T, T]: with self-pairs, without
    taken = 0
    for checkpoints in problems:
        sizes = [len(trajectories) for trajectories in checkpoints]
        if not sizes or not all(sizes) or (total is not None and len(sizes) != total.shape[1]):
            raise StageError(
                f"problem {taken + 1} has trajectories of {len(sizes)} checkpoints, {sizes.count(0)} of them empty",
                field="analysis",
                fix="compare checkpoints that were evaluated on the same problems",
            )
        means = _problem_means(checkpoints, sizes)
        total = means if total is None else total + means
        taken += 1
    if total is None:
        raise StageError("there are no trajectories to compare", field="analysis")
    return Similarity(total[0] / taken, total[1] / taken, taken)


def _problem_means(checkpoints: Sequence[Sequence[Units]], sizes: list[int]) -> Floats:
    """Return block means of the pairwise Jaccard matrix, with and without self-pairs; shape [2, T, T]."""
    pairs = _jaccard([units for trajectories in checkpoints for units in trajectories])
    starts = np.concatenate(([0], np.cumsum(sizes)[:-1]))
    sums = np.add.reduceat(np.add.reduceat(pairs, starts, axis=0), starts, axis=1)
    cells = np.outer(sizes, sizes).astype(np.float64)
    self_pairs = np.diag(np.asarray(sizes, dtype=np.float64))
    with np.errstate(invalid="ignore"):
        return np.stack([sums / cells, (sums - self_pairs) / (cells - self_pairs)])


def _jaccard(trajectories: Sequence[Units]) -> Floats:
    """Return the Jaccard index of every two trajectories' bigram sets, shape [len, len]; two empty sets are equal."""
    present = _presence(trajectories)
    shared = (present @ present.T).toarray()
    sizes = shared.diagonal()
    union = sizes[:, None] + sizes[None, :] - shared
    return np.asarray(np.divide(shared, union, out=np.ones_like(shared), where=union > 0), dtype=np.float64)


def _presence(trajectories: Sequence[Units]) -> Any:
    """Return which bigrams each trajectory has: sparse, shape [len, kinds of bigrams], of ones."""
    from scipy.sparse import csr_array

    lengths = np.fromiter(map(len, trajectories), np.int64, len(trajectories))
    number: defaultdict[Hashable, int] = defaultdict(count().__next__)
    units = np.fromiter(map(number.__getitem__, chain.from_iterable(trajectories)), np.int64, int(lengths.sum()))
    bigrams = units[:-1] * len(number) + units[1:]
    windows = np.maximum(lengths - 1, 0)  # only bigrams that end in the trajectory in which they began
    first = np.concatenate(([0], np.cumsum(lengths)))[:-1]
    ends = np.concatenate(([0], np.cumsum(windows)))
    bigrams = bigrams[np.arange(ends[-1]) + np.repeat(first - ends[:-1], windows)]
    kinds, columns = np.unique(bigrams, return_inverse=True)
    # float64: counts of shared bigrams are whole numbers, and exact in it.
    present = csr_array((np.ones(len(columns)), columns, ends), shape=(len(trajectories), max(1, len(kinds))))
    present.sum_duplicates()
    present.data[:] = 1.0
    return present


def _solutions(checkpoints: Sequence[Sequence[Path]], problem_ids: frozenset[str]) -> Iterator[list[list[Units]]]:
    """Yield every checkpoint's trajectories as units, problem by problem in the order of ids.

    Rows stay in Arrow's memory, and become Python's one problem at a time.
    """
    stored = [_rows(files, problem_ids) for files in checkpoints]
    for problem in sorted(problem_ids):
        samples = [column.take(rows.get(problem, [])).to_pylist() for column, rows in stored]
        yield [[words(text) for text in side] for side in samples]


def _rows(files: Sequence[Path], problem_ids: frozenset[str]) -> tuple[Any, dict[str, list[int]]]:
    """Return the completions of a checkpoint's samples of these problems, and each problem's rows in it."""
    import pyarrow as pa

    table = pa.Table.from_batches(list(batches_of(files, ("problem_id", "completion"), _BATCH_ROWS, problem_ids)))
    rows: dict[str, list[int]] = {}
    for index, problem in enumerate(table["problem_id"].to_pylist()):
        rows.setdefault(problem, []).append(index)
    return table["completion"], rows
