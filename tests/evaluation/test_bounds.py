"""pass@k between the bounds that avg@n and pass@n leave it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rloop_core.errors import StageError
from rloop_core.evaluation.bounds import check_consistent, check_summary, pass_at_k_bounds
from rloop_core.evaluation.metrics import avg_at_k, pass_at_k


@st.composite
def evaluations(draw) -> tuple[int, list[int], int]:
    n = draw(st.integers(1, 40))
    return n, draw(st.lists(st.integers(0, n), min_size=1, max_size=30)), draw(st.integers(1, n))


@given(evaluations())
def test_real_samples_are_always_within(evaluation) -> None:
    n, correct, k = evaluation
    avg, pass_n, pass_k = avg_at_k(n, correct).mean(), pass_at_k(n, correct, n).mean(), pass_at_k(n, correct, k).mean()
    low, high = pass_at_k_bounds(avg, pass_n, n, k)
    assert low - 1e-9 <= pass_k <= high + 1e-9
    check_consistent(avg, {k: pass_k, n: pass_n}, n)


@given(st.integers(2, 40), st.integers(1, 20), st.integers(1, 20), st.data())
def test_both_bounds_are_reached(n: int, solved: int, unsolved: int, data) -> None:
    k, c, full = data.draw(st.integers(1, n)), data.draw(st.integers(1, n)), data.draw(st.integers(0, solved))
    for correct, place in (([c] * solved, 1), ([n] * full + [1] * (solved - full), 0)):
        counts = np.array(correct + [0] * unsolved)
        bounds = pass_at_k_bounds(avg_at_k(n, counts).mean(), pass_at_k(n, counts, n).mean(), n, k)
        assert pass_at_k(n, counts, k).mean() == pytest.approx(bounds[place])


def test_the_papers_base_row_is_refused() -> None:
    """Table 1, AIME, base: avg 6.00 and pass@32 46.66 leave no more than 33.3 for pass@8; printed 43.65."""
    assert pass_at_k_bounds(0.06, 0.4666, 32, 8)[1] == pytest.approx(0.333, abs=1e-3)
    with pytest.raises(StageError, match=r"pass@8 = 0\.4365 is impossible"):
        check_consistent(0.06, {8: 0.4365, 16: 0.4609, 32: 0.4666}, 32)
    check_consistent(0.06, {8: 0.4365}, 32)  # nothing to hold it against
    with pytest.raises(StageError, match="exclude each other"):
        pass_at_k_bounds(0.5, 0.4, 32, 8)


def summary(**values: float) -> dict[str, object]:
    return {name.replace("_", "@"): {"value": value, "low": 0.0, "high": 1.0} for name, value in values.items()}


def test_a_summary_is_held_against_its_own_samples() -> None:
    paper = {**summary(avg_32=0.06, pass_8=0.4365, pass_32=0.4666, majority_32=0.1), "problems": 30, "samples": 960}
    with pytest.raises(StageError, match=r"pass@8 = 0\.4365 is impossible"):
        check_summary(paper, "avg@32")
    without_the_last = {name: value for name, value in paper.items() if name != "pass@32"}
    check_summary(without_the_last, "avg@32")
    with pytest.raises(StageError, match=r"pass@8 = 0\.4365 is impossible"):
        check_summary(without_the_last, "avg@32", solved=0.4666)
    with pytest.raises(StageError, match=r"pass@32 = 0\.4666, but 0\.5000 of the problems"):
        check_summary(paper, "avg@32", solved=0.5)
    check_summary(summary(avg_32=0.06, pass_8=0.33, pass_32=0.4666), "avg@32", solved=0.4666)
    check_summary({**summary(pass_8=0.9), "avg@8-32": {"value": 0.01}}, "avg@8-32", solved=0.9)
