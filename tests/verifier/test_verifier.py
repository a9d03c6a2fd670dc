"""Verdicts on whole completions, through the math engine where it is needed."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rloop_core.errors import VerifierError
from rloop_core.verifier import Judgement, Verdict, Verifier
from rloop_core.verifier.workers.pool import Failed
from tests.verifier.conftest import tables

pytestmark = pytest.mark.process


def boxed(answer: str) -> str:
    return f"Some reasoning about the numbers 1, 2 and 3.\nSo the result is $\\boxed{{{answer}}}$."


TABLES = tables("notations")
EQUAL, DIFFERENT = TABLES["equal_in_workers"], TABLES["different_in_workers"]


def test_equal_mathematics_is_correct_and_other_or_meaningless_answers_are_not(verifier: Verifier) -> None:
    judged = verifier.judge_many([(boxed(answer), gold, True) for answer, gold in EQUAL + DIFFERENT])
    assert judged[: len(EQUAL)] == [Judgement(Verdict.correct, answer, 1) for answer, _ in EQUAL]
    assert {one.verdict for one in judged[len(EQUAL) :]} <= {Verdict.wrong, Verdict.no_answer}
    turned = verifier.judge_many([(boxed(gold), answer, True) for answer, gold in EQUAL + DIFFERENT])
    assert [one.verdict is Verdict.correct for one in turned] == [True] * len(EQUAL) + [False] * len(DIFFERENT)


small = st.integers(-9, 9)


@settings(max_examples=40)
@given(small, small, small, small, st.sampled_from([-1, 2, 3, 5, 6, 7]))
def test_quotients_of_surds_are_exact(verifier: Verifier, a: int, b: int, c: int, d: int, root: int) -> None:
    """(a + b r)/(c + d r) = ((ac - bd n) + (bc - ad) r)/(c^2 - n d^2), with r the root of n."""
    norm = c * c - root * d * d
    if norm:
        r = f"\\sqrt{{{root}}}"
        quotient = f"\\frac{{{a}+({b}){r}}}{{{c}+({d}){r}}}"
        top = f"{a * c - b * d * root}+({b * c - a * d}){r}"
        pairs = [(quotient, f"({top})/({norm})"), (quotient, f"({top}+1)/({norm})")]
        judged = verifier.judge_many([(boxed(answer), gold, True) for answer, gold in pairs])
        assert [one.verdict for one in judged] == [Verdict.correct, Verdict.wrong]


def test_each_way_to_have_no_verdict(verifier: Verifier) -> None:
    assert verifier.judge("no box", "7") == Judgement(Verdict.no_answer, None, 0)
    assert verifier.judge("\\boxed{7", "7") == Judgement(Verdict.no_answer, None, 1)
    assert verifier.judge("\\boxed{7}", "7", finished=False) == Judgement(Verdict.truncated, "7", 1)
    assert verifier.judge("no box", "7", finished=False) == Judgement(Verdict.truncated, None, 0)
    for gold, reason in (
        ("", "the gold answer is empty"),
        ("$$", "the gold answer is empty"),
        (None, "the gold answer is missing"),
        (float("nan"), "the gold answer nan is not finite"),
        ([], "the list of gold answers is empty"),
        ("x" * 3000, "the gold is longer than 2000 characters"),
        ("9^{9^9}", "the gold has an exponent above 100000"),
    ):
        assert verifier.judge("\\boxed{7}", gold) == Judgement(Verdict.error, "7", 1, reason)
    hostile = Judgement(Verdict.wrong, "9^{9^9}", 1, "the answer has an exponent above 100000")
    assert verifier.judge("\\boxed{9^{9^9}}", "7") == hostile
    assert verifier.judge("\\boxed{9^{9^9}}", "9^{9^9}").verdict is Verdict.correct


def test_a_busy_moment_decides_about_no_later_answer(verifier: Verifier, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = "\\boxed{41\\sin^2 x+41\\cos^2 x}", "41"
    for failure in (Failed("was stopped", timeout=True), Failed("ran out of memory")):
        with monkeypatch.context() as busy:
            busy.setattr(verifier._pool, "map", lambda tasks, failure=failure: [failure for _ in tasks])
            assert verifier.judge(*pair).verdict is (Verdict.timeout if failure.timeout else Verdict.error)
    assert verifier.judge(*pair).verdict is Verdict.correct


@pytest.mark.parametrize(("stated", "gold", "right"), TABLES["stated"])
def test_an_answer_line_that_takes_its_answer_back_or_lists_several(
    verifier: Verifier, stated: str, gold: str, right: bool
) -> None:
    assert verifier.judge(f"Some work.\nAnswer: {stated}", gold).verdict is (
        Verdict.correct if right else Verdict.wrong
    )


_WRITTEN = r"1 x \\frac \frac { } \pi \\pi $ , ( ] #### \boxed{ \\ ="
_PIECES = ["\t", " OR ", *_WRITTEN.split(), "\x0crac"]


@settings(max_examples=100)
@given(st.lists(st.sampled_from(_PIECES), min_size=1, max_size=8).map("".join))
def test_every_text_equals_itself_however_damaged(verifier: Verifier, text: str) -> None:
    """Damaged golds are repaired, answers are not."""
    assert verifier._decide([(text, text)])[0].verdict in (Verdict.correct, Verdict.error)


def test_order_is_kept_among_fast_slow_and_undecided_items(verifier: Verifier) -> None:
    items = []
    for i in range(15):
        root = f"\\sqrt{{{i + 2}}}"
        pairs = [
            (f"\\boxed{{{i}}}", str(i)),
            (f"\\boxed{{{root}}}", f"{root}+0"),
            ("", "1"),
            (f"\\boxed{{{i}/2}}", "0.25"),
        ]
        items += [(*pair, True) for pair in pairs]
    verdicts = [judgement.verdict.value for judgement in verifier.judge_many(items)]
    assert verdicts == ["correct", "correct", "no_answer", "wrong"] * 15
    assert verifier.judge_many([]) == []


def test_over_long_answers_are_wrong_at_once_and_recorded_by_their_beginning(verifier: Verifier) -> None:
    judgement = verifier.judge(boxed("9" * 5_000_000), "7")
    assert judgement.verdict is Verdict.wrong
    assert judgement.answer == "9" * 2000


def test_integers_need_no_process() -> None:
    items = [(f"adding {i} and 1 gives \\boxed{{{i + 1}}}", str(i + 1), True) for i in range(2_000)]
    with Verifier() as fresh:
        assert {judgement.verdict for judgement in fresh.judge_many(items)} == {Verdict.correct}
        assert fresh._pool._idle == []


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(VerifierError, match="fix: "):
        Verifier(workers=0)
