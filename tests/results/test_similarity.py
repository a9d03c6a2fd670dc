"""Similarity of solutions, against the definition with sets (paper appendix A)."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rloop_core.errors import StageError
from rloop_core.results.similarity import similarity, words

WORDS = st.lists(st.sampled_from(["a", "b", "\\frac", "1+1=2"]), max_size=7).map(" ".join).map(words)
TOKENS = st.lists(st.sampled_from([0, 1, 151_643, 2**31 - 1]), max_size=7)


@st.composite
def evaluations(draw) -> list[list[list[list]]]:
    solution = draw(st.sampled_from([WORDS, TOKENS]))
    steps = draw(st.integers(1, 4))
    sizes = [draw(st.integers(1, 4)) for _ in range(steps)]
    problems = draw(st.integers(1, 4))
    return [[[draw(solution) for _ in range(size)] for size in sizes] for _ in range(problems)]


def jaccard(left: list, right: list) -> float:
    one, other = (set(pairwise(solution)) for solution in (left, right))
    return len(one & other) / len(one | other) if one | other else 1.0


@given(evaluations())
@settings(max_examples=100)
def test_equals_the_definition_with_sets(problems) -> None:
    result = similarity(problems)
    steps = len(problems[0])
    for i in range(steps):
        for j in range(steps):
            per_problem, apart = [], []
            for checkpoints in problems:
                pairs = {
                    (a, b): jaccard(left, right)
                    for a, left in enumerate(checkpoints[i])
                    for b, right in enumerate(checkpoints[j])
                }
                per_problem.append(np.mean(list(pairs.values())))
                others = [value for (a, b), value in pairs.items() if i != j or a != b]
                apart.append(np.mean(others) if others else np.nan)
            assert abs(result.with_self_pairs[i, j] - np.mean(per_problem)) < 1e-12
            if not np.isnan(np.mean(apart)):
                assert abs(result.without_self_pairs[i, j] - np.mean(apart)) < 1e-12
            else:
                assert np.isnan(result.without_self_pairs[i, j])


def test_self_pairs_lift_the_diagonal_only() -> None:
    same, other = words("a b c d"), words("x y z")
    result = similarity([[[same, other], [same, other]]])
    assert result.with_self_pairs.tolist() == [[0.5, 0.5], [0.5, 0.5]]
    assert result.without_self_pairs.tolist() == [[0.0, 0.5], [0.5, 0.0]]


def test_token_ids_are_units_too() -> None:
    assert similarity([[[[1, 2, 3]], [[1, 2, 4]]]]).with_self_pairs[0, 1] == pytest.approx(1 / 3)


def test_missing_trajectories_are_refused() -> None:
    with pytest.raises(StageError, match="no trajectories"):
        similarity([])
    with pytest.raises(StageError, match="problem 2"):
        similarity([[[["a", "b"]]], [[]]])
    with pytest.raises(StageError, match="problem 1 has trajectories of 2 checkpoints, 1 of them empty"):
        similarity([[[["a"]], []]])


class Problem(list):
    """The trajectories of a problem; unlike a list, it can be referred to weakly."""


def test_one_problem_is_held_at_a_time() -> None:
    handed_out: list[weakref.ref[Problem]] = []

    def problems() -> Iterator[Problem]:
        for number in range(20):
            assert sum(earlier() is not None for earlier in handed_out) <= 1, "only the last may still be held"
            problem = Problem([[words(f"a b {number}"), words("b c")]])
            handed_out.append(weakref.ref(problem))
            yield problem
            del problem

    assert similarity(problems()).problems == 20
