"""Each kind of answer that graders get wrong: no wrong one is accepted, and no right one refused.

`kinds.jsonl` holds one JSON list a line: kind, answer, gold, and whether a careful human accepts the answer. The pairs
were drawn at random, and their truth is known by construction: exact integers and fractions, or the mistake that was
made on purpose, such as a sum in place of a product. One pair of each form was kept.
"""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path

import pytest

from rloop_core.verifier import Verdict, Verifier

PAIRS = [json.loads(line) for line in Path(__file__).with_name("kinds.jsonl").read_text().splitlines()]
KINDS = {kind: [pair[1:] for pair in pairs] for kind, pairs in groupby(PAIRS, key=lambda pair: pair[0])}


@pytest.mark.process
@pytest.mark.parametrize("pairs", KINDS.values(), ids=KINDS)
def test_pairs_of_each_kind(verifier: Verifier, pairs: list[tuple[str, str, bool]]) -> None:
    judged = verifier.judge_many([(f"So it is \\boxed{{{answer}}}.", gold, True) for answer, gold, _ in pairs])
    mistaken = [
        f"{'refused' if equal else 'accepted'}: {answer!r} -> {gold!r}"
        for (answer, gold, equal), judgement in zip(pairs, judged, strict=True)
        if equal is not (judgement.verdict is Verdict.correct)
    ]
    assert not mistaken, "\n".join(mistaken)
