"""Each kind of answer or completion that graders get wrong: no wrong one is accepted, and no right one refused."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from rloop_core.verifier import Gold, Verdict, Verifier
from tests.verifier.kinds import KINDS_OF_FORMULAS, Drawn, pairs_of
from tests.verifier.kinds_of_answers import KINDS_OF_ANSWERS, ONE_WAY
from tests.verifier.kinds_of_completions import KINDS_OF_COMPLETIONS, Completion, completions_of

needs_workers = pytest.mark.process
KINDS = KINDS_OF_FORMULAS + KINDS_OF_ANSWERS

SEED = 20261125
counts = pytest.mark.parametrize("count", [10, pytest.param(60, marks=pytest.mark.long)])


def check(verifier: Verifier, cases: list[Completion]) -> None:
    judged = verifier.judge_many([(case.text, case.gold, True) for case in cases])
    pairs = list(zip(cases, judged, strict=True))
    accepted = {f"{c.text!r} -> {c.gold!r}" for c, j in pairs if not c.right and j.verdict is Verdict.correct}
    refused = {f"{c.text!r} -> {c.gold!r}" for c, j in pairs if c.right and j.verdict is not Verdict.correct}
    message = [f"{len(accepted)} accepted although wrong", *sorted(accepted)]
    assert not accepted and not refused, "\n".join(
        [*message, f"{len(refused)} refused although right", *sorted(refused)]
    )


@needs_workers
@counts
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_pairs_of_each_kind(verifier: Verifier, kind: Callable[[random.Random], Drawn], count: int) -> None:
    pairs = pairs_of(kind, SEED, count, one_way=kind in ONE_WAY)
    check(verifier, [Completion(f"So it is \\boxed{{{pair.answer}}}.", pair.gold, pair.equal) for pair in pairs])


@needs_workers
@counts
@pytest.mark.parametrize("kind", KINDS_OF_COMPLETIONS, ids=lambda kind: kind.__name__)
def test_completions_of_each_kind(
    verifier: Verifier, kind: Callable[[random.Random, bool], tuple[str, Gold]], count: int
) -> None:
    check(verifier, list(completions_of(kind, SEED, count)))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_no_kind_contradicts_itself(kind: Callable[[random.Random], Drawn]) -> None:
    draw = random.Random(SEED)
    for drawn in (kind(draw) for _ in range(300)):
        assert drawn.equal and drawn.unequal
        assert not {drawn.text, *drawn.equal} & set(drawn.unequal), drawn
    assert list(pairs_of(kind, SEED, 5)) == list(pairs_of(kind, SEED, 5)) != list(pairs_of(kind, SEED + 1, 5))
