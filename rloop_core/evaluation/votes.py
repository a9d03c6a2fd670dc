"""Votes for wrong answers: which of a problem's wrong samples said the same.

The verifier would have to compare every pair to know which wrong answers are equal in value. They are told apart by
their normalised text instead, spaces left out: `1/2` and `0.5` are two candidates, `\\( 12 \\)` and `12.` one. So a
wrong answer may be split into several with fewer votes each, and majority@k comes out a little too high.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from rloop_core.trajectories.success import CORRECT
from rloop_core.verifier.read.normalise import normalise

Votes: TypeAlias = tuple[int, ...]
"""Samples of each distinct wrong answer to one problem, most first."""

TRUNCATED = "truncated"  # a sample that was cut off gave no final answer, even where a box was seen


def wrong_votes(samples: Iterable[tuple[str, str | None, str, int]]) -> Mapping[str, Votes]:
    """The votes of every problem with a wrong answer.

    Args:
        samples: (problem id, extracted answer, verdict, how many such samples), in any order.
    """
    counts: dict[str, Counter[str]] = {}
    for problem_id, answer, verdict, times in samples:
        if answer is not None and verdict not in (CORRECT, TRUNCATED):
            counts.setdefault(problem_id, Counter())[normalise(answer).replace(" ", "")] += times
    return {problem_id: tuple(sorted(own.values(), reverse=True)) for problem_id, own in counts.items()}


def wrong_votes_in(samples: pa.Table) -> Mapping[str, Votes]:
    """The same, from the columns problem_id, answer and verdict of the trajectory schema."""
    voting = pc.and_(pc.is_valid(samples["answer"]), pc.not_equal(samples["verdict"], CORRECT))
    columns = ["problem_id", "answer", "verdict"]
    grouped = samples.select(columns).filter(voting).group_by(columns).aggregate([([], "count_all")])
    return wrong_votes(zip(*(grouped[name].to_pylist() for name in (*columns, "count_all")), strict=True))
