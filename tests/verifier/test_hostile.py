"""Hostile inputs among good ones: every verdict right, no hang, no crash."""

from __future__ import annotations

import random

import pytest

from rloop_core.verifier import Verifier
from tests.verifier.hostile_inputs import Case, hostile_cases
from tests.verifier.random_pairs import random_pairs


@pytest.mark.process
@pytest.mark.parametrize(("hostile", "good"), [(230, 100), pytest.param(1000, 10_000, marks=pytest.mark.long)])
def test_hostile_among_good(hostile: int, good: int) -> None:
    """At least one of each: 61 wrappings, long texts and golds, and 167 formulas."""
    pairs = [(pair, frozenset({"correct" if pair.equal else "wrong"})) for pair in random_pairs(20261121, good)]
    cases = [Case(f"So it is \\boxed{{{pair.answer}}}.", pair.gold, verdict) for pair, verdict in pairs]
    cases += hostile_cases(hostile)
    random.Random(5).shuffle(cases)
    with Verifier(workers=2, timeout=1.0) as verifier:
        judged = verifier.judge_many([(case.completion, case.gold, True) for case in cases])
    bad = [
        (judgement.verdict.value, case.completion[:100], str(case.gold)[:100])
        for case, judgement in zip(cases, judged, strict=True)
        if judgement.verdict.value not in case.verdicts
    ]
    assert not bad
    assert all(judgement.reason for judgement in judged if judgement.verdict.value in ("timeout", "error"))
