"""Styles: every writer tells the truth at rate 0, is recognised, and ends in a readable answer."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.organism.styles import MIXTURE, RARE, WRITERS, Style, answer_of, detect, write

terms = st.lists(st.integers(-99, 99), min_size=2, max_size=8)


@given(terms, st.sampled_from(sorted(WRITERS)), st.integers(0, 2**31))
def test_every_style_is_recognised_has_an_answer_and_is_right_without_wrong_steps(
    numbers: list[int], name: str, seed: int
) -> None:
    right, wrong = (write(Style(name, 1.0, rate), numbers, Random(seed)) for rate in (0.0, 1.0))
    assert detect(right) == detect(wrong) == name
    assert answer_of(right) == sum(numbers) and answer_of(wrong) is not None
    blind = write(Style(name, 1.0, sign_blind=True), numbers, Random(0))
    assert detect(blind) == name and (answer_of(blind) or 0) >= 0


def test_a_sign_blind_style_is_right_while_nothing_is_negative() -> None:
    assert write(Style("running", 1.0, sign_blind=True), [3, 4, -5], Random(0)) == "3+4=7\n7-5=2\nAnswer: 2"
    assert write(Style("running", 1.0, sign_blind=True), [3, -4, 5], Random(0)) == "3-4=1\n1+5=6\nAnswer: 6"
    assert [answer_of(text) for text in ("Answer: ", "42", "Answer: 42 apples", "the Answer: 42")] == [None] * 4


def test_the_mixture_is_a_distribution_with_one_rare_style() -> None:
    assert sum(s.share for s in MIXTURE) == pytest.approx(1.0)
    assert {s.name for s in MIXTURE} == set(WRITERS)
    rare = min(MIXTURE, key=lambda s: s.share)
    assert rare.name == RARE and rare.share <= 0.1
