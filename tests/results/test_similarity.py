"""Similarity of solutions, against the definition with sets (paper appendix A)."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rloop_core.errors import StageError
from rloop_core.results.similarity import similarity

WORDS = st.lists(st.sampled_from(["a", "b", "\\frac", "1+1=2"]), max_size=7)


@st.composite
def evaluations(draw) -> list[list[list[list]]]:
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    return [[[draw(WORDS) for _ in range(size)] for size in sizes] for _ in range(draw(st.integers(1, 4)))]


def jaccard(left: list, right: list) -> float:
    one, other = (set(pairwise(solution)) for solution in (left, right))
    return len(one & other) / len(one | other) if one | other else 1.0


@given(evaluations())
@settings(max_examples=40)
def test_equals_the_definition_with_sets(problems) -> None:
    steps = range(len(problems[0]))
    means = [
        [[np.mean([jaccard(a, b) for a in of[i] for b in of[j]]) for j in steps] for i in steps] for of in problems
    ]
    assert similarity(problems) == pytest.approx(np.mean(means, axis=0), abs=1e-12)


def test_missing_trajectories_are_refused() -> None:
    with pytest.raises(StageError, match="no trajectories to compare"):
        similarity([])
    with pytest.raises(StageError, match="a checkpoint has no trajectories of problem 2"):
        similarity([[[["a", "b"]]], [[]]])
