from __future__ import annotations

import numpy as np
import pytest

from rloop_core.evaluation.outcomes import Outcomes
from rloop_core.results.analysis.transitions import SolvedRule, transitions
from rloop_core.results.study.claims import AS_CLAIMED, OPPOSITE, UNRESOLVED, outcome_of
from rloop_core.results.study.forgetting import lost_and_null
from rloop_core.results.study.intervals import seed_effect
from rloop_core.results.study.overfitting import fall_from_peak, slope_of_last_third, window_mean


def test_a_fall_is_measured_whole():
    curve = np.array([0.2, 0.7, 0.5, 0.1])
    lost, chosen = fall_from_peak(np.broadcast_to(curve[:, None, None], (4, 3, 6)).copy())
    assert lost == pytest.approx(np.full((3, 6), -0.6)) and chosen == [[1, 1]] * 3


@pytest.mark.parametrize("seeds", [1, 4])
def test_noise_alone_has_no_peak_to_fall_from(seeds):
    random = np.random.default_rng(0)
    drawn = [random.normal(size=(8, seeds, 20)) for _ in range(300)]
    naive = np.mean([(table[-1].mean() - table.mean(axis=(1, 2)).max()) for table in drawn])
    fair = np.array([fall_from_peak(table)[0].mean() for table in drawn])
    assert abs(fair.mean()) < 4 * fair.std() / np.sqrt(len(fair))
    assert naive < -5 * fair.std() / np.sqrt(len(fair))


def test_nobody_chooses_the_peak_that_it_is_measured_at():
    table = np.random.default_rng(1).random((6, 3, 10))
    chosen = fall_from_peak(table)[1]
    own = table.copy()
    own[:, 1, ::2] = np.random.default_rng(2).random((6, 5))  # seed 1, the first half of the problems
    assert fall_from_peak(own)[1][1][0] == chosen[1][0]


def test_one_problem_and_one_seed_still_have_a_peak():
    lost, chosen = fall_from_peak(np.array([0.1, 0.4, 0.3])[:, None, None])
    assert lost.tolist() == [[pytest.approx(-0.1)]] and chosen == [[1]]


@pytest.mark.parametrize("rule", ["any", "at-least-3", "majority"])
def test_forgetting_and_its_null_are_the_matrices_means(rule):
    random = np.random.default_rng(4)
    n = np.where(random.random((4, 15)) < 0.5, 8, 5)
    c = random.integers(0, n + 1)
    ids = [f"p{i:02d}" for i in range(15)]
    checkpoints = [Outcomes.from_counts(ids, one, right) for one, right in zip(n, c, strict=True)]
    observed, null = lost_and_null(checkpoints, SolvedRule(rule))
    matrices = transitions(checkpoints, SolvedRule(rule))
    later = np.triu_indices(4, k=1)
    assert observed.mean() == pytest.approx(matrices.forgetting[later].mean(), abs=1e-12)
    assert null.mean() == pytest.approx(matrices.null[later].mean(), abs=1e-12)


def test_a_claim_is_judged_by_the_interval_alone():
    up, down, wide = seed_effect([0.2, 0.21, 0.22]), seed_effect([-0.2, -0.21, -0.22]), seed_effect([0.5, -0.4, 0.2])
    assert [outcome_of(one, 1) for one in (up, down, wide)] == [AS_CLAIMED, OPPOSITE, UNRESOLVED]
    assert [outcome_of(one, -1) for one in (up, down, wide)] == [OPPOSITE, AS_CLAIMED, UNRESOLVED]
    assert outcome_of(seed_effect([0.4]), 1) == UNRESOLVED


def test_windows_and_slopes_of_training():
    curve = {step: float(step**2) for step in range(1, 10)}
    assert window_mean(curve, 9, 3) == pytest.approx((49 + 64 + 81) / 3)
    assert window_mean(curve, 0, 3) == window_mean(curve, 2, 3) == pytest.approx((1 + 4 + 9) / 3)
    assert window_mean(curve, 9, 50) == pytest.approx(sum(curve.values()) / 9)
    assert slope_of_last_third(curve) == pytest.approx(100 * np.polyfit([7, 8, 9], [49, 64, 81], 1)[0])
    assert slope_of_last_third({1: 0.1, 2: 0.3}) == pytest.approx(20)
