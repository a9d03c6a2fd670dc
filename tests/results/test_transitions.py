"""Learning, forgetting and their nulls, against counting by hand and against simulation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rloop_core.errors import ConfigError, StageError
from rloop_core.evaluation.outcomes import Outcomes
from rloop_core.results.analysis.transitions import (
    SolvedRule,
    Transitions,
    histories,
    transitions,
)

ANY = SolvedRule()
RULES = ["any", "majority", "at-least-1", "at-least-2", "at-least-5"]


def of_counts(n, c, rule: SolvedRule = ANY) -> Transitions:
    """The matrices of counts of samples and correct ones, shape [checkpoints, problems] each."""
    ids = [f"p{place:03d}" for place in range(len(n[0]))]
    return transitions([Outcomes.from_counts(ids, *one) for one in zip(n, c, strict=True)], rule)


@st.composite
def counts(draw) -> tuple[np.ndarray, np.ndarray]:
    steps, problems = draw(st.integers(1, 5)), draw(st.integers(1, 8))
    n = np.array([[draw(st.integers(1, 9)) for _ in range(problems)] for _ in range(steps)])
    return n, np.array([[draw(st.integers(0, int(cell))) for cell in row] for row in n])


@given(counts(), st.sampled_from(RULES))
@settings(max_examples=200)
def test_matrices_equal_counting_cell_by_cell(table, name: str) -> None:
    n, c = table
    rule = SolvedRule(name)
    need = {"any": lambda s: 1, "majority": lambda s: s // 2 + 1}.get(name, lambda s: int(name.rsplit("-", 1)[1]))
    result = of_counts(n, c, rule)
    steps, problems = n.shape
    for i in range(steps):
        for j in range(steps):
            lost = sum(
                c[i, p] >= need(n[i, p]) and not c[j, p] >= need(n[j, p]) for p in range(problems)
            )  # fmt: skip
            assert result.forgetting[i, j] == lost / problems
            assert result.learning[j, i] == lost / problems
    assert (result.null_high >= 0).all()
    assert (result.null <= 1 + 1e-12).all()


def test_the_null_is_the_mean_and_percentile_of_random_splits() -> None:
    draw = np.random.default_rng(3)
    problems, n = 40, 8
    first, second = draw.integers(0, n + 1, problems), draw.integers(0, n + 1, problems)
    for name in ("any", "majority", "at-least-3"):
        rule = SolvedRule(name)
        result = of_counts([[n] * problems] * 2, [first, second], rule)
        took = draw.hypergeometric(first + second, 2 * n - first - second, n, size=(20_000, problems))
        shares = (rule(n, took) & ~rule(n, first + second - took)).mean(axis=1)
        assert result.null[0, 1] == pytest.approx(np.mean(shares), abs=3e-3)
        assert result.null_high[0, 1] == pytest.approx(np.quantile(shares, 0.975), abs=1.01 / problems)
        assert result.null[0, 1] == pytest.approx(result.null[1, 0])  # equal samples: chance has no direction


def test_equal_policies_stay_below_the_null_and_a_collapse_exceeds_it() -> None:
    draw = np.random.default_rng(5)
    rates = draw.beta(0.5, 1.0, 200)
    same = draw.binomial(32, np.stack([rates, rates]))
    collapsed = draw.binomial(32, np.stack([rates, rates * (draw.random(200) < 0.5)]))
    calm = of_counts(np.full((2, 200), 32), same)
    loud = of_counts(np.full((2, 200), 32), collapsed)
    assert calm.forgetting[0, 1] <= calm.null_high[0, 1]
    assert loud.forgetting[0, 1] > loud.null_high[0, 1]


def test_certain_problems_have_no_chance_of_being_forgotten() -> None:
    result = of_counts([[4, 4], [4, 4]], [[4, 0], [4, 0]])
    assert result.null.tolist() == [[0, 0], [0, 0]]
    assert result.null_high.tolist() == [[0, 0], [0, 0]]


def outcomes(*correct: int, n: int = 4) -> Outcomes:
    return Outcomes.from_counts([f"p{place}" for place in range(len(correct))], n, correct)


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(StageError, match="different problems"):
        transitions([outcomes(1, 1), outcomes(1)], ANY)
    with pytest.raises(StageError, match="no evaluated checkpoint"):
        transitions([], ANY)
    with pytest.raises(ConfigError, match="use any, majority"):
        SolvedRule("at-least-0")


def test_histories_tell_what_became_of_each_problem() -> None:
    steps = [outcomes(0, 1, 1, 0, 2), outcomes(1, 0, 1, 0, 0), outcomes(1, 1, 1, 0, 0)]
    rows = histories(steps, ["base", "step 40", "theta_1"], ANY)
    assert [row.kind for row in rows] == ["learnt", "regained", "always", "never", "lost"]
    assert rows[1].told == "solved at base, lost at step 40, regained at theta_1"
    assert rows[3].told == "never solved"
    assert rows[0].correct == (0, 1, 1)
    with pytest.raises(StageError, match="labels"):
        histories(steps, ["base"], ANY)
