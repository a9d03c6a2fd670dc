"""majority@k: the chance that the most frequent answer of k samples is right (Wang et al. 2022, arXiv:2203.11171).

Samples without an answer do not vote. k of the n samples are drawn without replacement, as for pass@k. A tie is broken
at random, so a right answer among m tied ones counts 1/m.

Right answers are one candidate. Comparing all wrong answers with the verifier would take every pair of them, so they
are told apart by their normalised text without spaces: `1/2` and `0.5` are two candidates, `\\( 12 \\)` and `12.` one.
A wrong answer may thus be split into several with fewer votes each, and majority@k comes out a little too high.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rloop_core.errors import ConfigError, StageError
from rloop_core.trajectories.success import CORRECT
from rloop_core.verifier.read.normalise import normalise

Votes: TypeAlias = tuple[int, ...]
"""Samples of each distinct wrong answer to one problem, most frequent first."""

DRAWS = 1000
_TRUNCATED = "truncated"  # a sample that was cut off gave no final answer, even if it has a box


def majority_at_k(correct: int, wrong: Sequence[int], silent: int, k: int, seed: int = 0) -> float:
    """Return majority@k of one problem, in [0, 1].

    Args:
        correct: Samples with the right answer.
        wrong: Samples of each distinct wrong answer.
        silent: Samples without an answer.
        k: Samples that vote.
        seed: Seed of the draws if k is below the number of samples; the result is then a mean over 1,000 draws
            (standard error below 0.016).

    Raises:
        ConfigError: k is below 1 or above the number of samples.
        StageError: A count is negative.
    """
    counts = np.array([correct, *wrong, silent], dtype=np.int64)
    if (counts < 0).any():
        raise StageError("a count of votes is negative", field="majority")
    total = int(counts.sum())
    if not 1 <= k <= total:
        raise ConfigError(
            f"majority@{k} needs {k} samples, there are {total}", field="k", fix=f"give k between 1 and {total}"
        )
    if k == total:
        return float(_first_wins(counts[None, :-1])[0])
    if not correct:
        return 0.0
    drawn = np.random.default_rng(seed).multivariate_hypergeometric(counts, k, size=DRAWS, method="marginals")
    return float(_first_wins(drawn[:, :-1]).mean())


def _first_wins(votes: np.ndarray) -> np.ndarray:
    """Return for each draw 1, 0, or its share of a tie: what the first candidate wins. Shape [draws]."""
    most = votes.max(axis=1)
    tied = (votes == most[:, None]).sum(axis=1)
    return np.where((votes[:, 0] == most) & (most > 0), 1.0 / tied, 0.0)


def wrong_votes(samples: Iterable[tuple[str, str | None, str, int]]) -> Mapping[str, Votes]:
    """Return the votes by problem id, for problems with a wrong answer.

    Args:
        samples: (problem id, extracted answer, verdict, number of such samples), in any order.
    """
    counts: dict[str, Counter[str]] = {}
    for problem_id, answer, verdict, number in samples:
        if answer is not None and verdict not in (CORRECT, _TRUNCATED):
            counts.setdefault(problem_id, Counter())[normalise(answer).replace(" ", "")] += number
    return {problem_id: tuple(sorted(votes.values(), reverse=True)) for problem_id, votes in counts.items()}


def wrong_votes_in(samples: pa.Table) -> Mapping[str, Votes]:
    """Return `wrong_votes` of a table with the columns problem_id, answer and verdict of the trajectory schema."""
    voting = pc.and_(pc.is_valid(samples["answer"]), pc.not_equal(samples["verdict"], CORRECT))
    columns = ["problem_id", "answer", "verdict"]
    grouped = samples.select(columns).filter(voting).group_by(columns).aggregate([([], "count_all")])
    return wrong_votes(zip(*(grouped[name].to_pylist() for name in (*columns, "count_all")), strict=True))
