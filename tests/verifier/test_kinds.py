"""Each kind of answer that graders get wrong: no wrong one is accepted, and no right one refused."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from rloop_core.verifier import Verdict, Verifier
from tests.verifier.kinds import KINDS_OF_FORMULAS, Drawn, pairs_of
from tests.verifier.kinds_of_answers import KINDS_OF_ANSWERS, ONE_WAY

KINDS = KINDS_OF_FORMULAS + KINDS_OF_ANSWERS

SEED = 20261125


@pytest.mark.process
@pytest.mark.parametrize("count", [10, pytest.param(60, marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_pairs_of_each_kind(verifier: Verifier, kind: Callable[[random.Random], Drawn], count: int) -> None:
    pairs = list(pairs_of(kind, SEED, count, one_way=kind in ONE_WAY))
    judged = verifier.judge_many([(f"So it is \\boxed{{{pair.answer}}}.", pair.gold, True) for pair in pairs])
    mistaken = [
        f"{'refused' if pair.equal else 'accepted'}: {pair.answer!r} -> {pair.gold!r}"
        for pair, judgement in zip(pairs, judged, strict=True)
        if pair.equal is not (judgement.verdict is Verdict.correct)
    ]
    assert not mistaken, "\n".join(mistaken)
