"""majority@k against counting every draw."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rloop_core.errors import ConfigError, StageError
from rloop_core.evaluation.majority import majority_at_k


def by_counting(correct: int, wrong: list[int], silent: int, k: int) -> float:
    samples = [0] * correct + [kind + 1 for kind, count in enumerate(wrong) for _ in range(count)] + [-1] * silent
    won = []
    for draw in combinations(samples, k):
        votes = [draw.count(kind) for kind in range(len(wrong) + 1)]
        won.append(votes[0] and (votes[0] == max(votes)) / votes.count(max(votes)))
    return float(np.mean(won))


@given(
    st.integers(0, 4), st.lists(st.integers(1, 3), max_size=3), st.integers(0, 2), st.data()
)  # fmt: skip
@settings(max_examples=60)
def test_equals_the_share_of_all_draws(correct: int, wrong: list[int], silent: int, data) -> None:
    total = correct + sum(wrong) + silent
    if not total:
        return
    k = data.draw(st.integers(1, total))
    value = majority_at_k(correct, wrong, silent, k, seed=1)
    tolerance = 1e-12 if k == total or not correct else 0.08  # five standard errors of 1,000 draws
    assert value == pytest.approx(by_counting(correct, wrong, silent, k), abs=tolerance)


def test_ties_and_silence() -> None:
    assert majority_at_k(2, [2], 5, 9) == 0.5
    assert majority_at_k(1, [], 31, 32) == 1.0
    assert majority_at_k(0, [], 4, 4) == 0.0
    assert majority_at_k(3, [2, 2, 2], 0, 9) == 1.0
    assert majority_at_k(5, [4], 0, 3, seed=2) == majority_at_k(5, [4], 0, 3, seed=2)


def test_impossible_counts() -> None:
    with pytest.raises(ConfigError, match="there are 3"):
        majority_at_k(1, [2], 0, 4)
    with pytest.raises(StageError, match="negative"):
        majority_at_k(-1, [2], 0, 1)
