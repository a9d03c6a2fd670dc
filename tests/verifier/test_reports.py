"""Cases from public bug reports of math graders: no wrong answer is accepted, and no right one refused.

`report_cases.jsonl` holds one JSON list a line: kind, completion, gold, expected. `not correct` is any verdict but
correct, and `truncated` is a completion without its end.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import pytest

from rloop_core.verifier import Gold, Judgement, Verdict, Verifier

pytestmark = pytest.mark.process


class Case(NamedTuple):
    """A completion, its gold, and the verdict that a careful human would give."""

    kind: str
    completion: str
    gold: Gold
    expected: str


CASES = [Case(*json.loads(line)) for line in Path(__file__).with_name("report_cases.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def judged(verifier: Verifier) -> list[tuple[Case, Judgement]]:
    items = [(case.completion, case.gold, case.expected != Verdict.truncated) for case in CASES]
    return list(zip(CASES, verifier.judge_many(items), strict=True))


def is_as_expected(case: Case, judgement: Judgement) -> bool:
    if case.expected == "not correct":
        return judgement.verdict is not Verdict.correct
    return judgement.verdict == case.expected


def listed(judged: list[tuple[Case, Judgement]]) -> str:
    return "\n".join(f"{case.kind}: {judgement.answer!r} -> {case.gold!r}" for case, judgement in judged)


def test_no_wrong_answer_is_accepted_and_no_right_one_refused(judged: list[tuple[Case, Judgement]]) -> None:
    mistaken = [(c, j) for c, j in judged if (c.expected == Verdict.correct) is not (j.verdict is Verdict.correct)]
    assert not mistaken, f"{len(mistaken)} verdicts are mistaken\n{listed(mistaken)}"


def test_nearly_every_verdict_is_as_expected(judged: list[tuple[Case, Judgement]]) -> None:
    others = [(c, j) for c, j in judged if not is_as_expected(c, j)]
    assert len(others) <= 0.03 * len(CASES), f"{len(others)} of {len(CASES)} differ\n{listed(others)}"
