"""The comparison with other graders: completions, a real grader, counting and the page."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.graders.__main__ import GRADERS, ROOT, Case, Reply, page, run_grader, run_rloop
from benchmarks.graders.corpus import (
    AS_WRITTEN,
    BOX,
    DATA,
    LAYOUTS,
    MISSES,
    OWN_FORM,
    SPELLINGS,
    WORKED,
    Row,
    corpus,
    exact,
    fill,
    rows_in,
)  # fmt: skip
from benchmarks.graders.serve import graded

ROWS = [
    Row(f"spelling/as_is/test/{number}", "spelling", "as_is", fill(BOX, answer, ""), gold, answer, label)
    for number, (answer, gold, label) in enumerate(
        [
            *(("3", "3", True), ("10", "9", False), ("\\frac{2}{4}", "0.5", True), ("\\sqrt{8}", "2\\sqrt{2}", True)),
            *(("(1,2)", "(2,1)", False), ("4.5 \\times 10^{33}", "4.5e33", True), ("7.", "7", True)),
            *(("52_9", "52_8", False), ("\\text{no}", "\\text{yes}", False)),
        ]
    )
]


@pytest.mark.skipif(not DATA.is_dir(), reason="the problem sets are not beside this clone")
def test_the_corpus_is_large_has_every_kind_of_row_and_its_labels_are_right() -> None:
    rows = corpus()
    assert len({row.id for row in rows}) == len(rows) > 4000
    labels = [row.label for row in rows]
    assert labels.count(True) > 2000 and labels.count(False) > 1500
    assert {row.what for row in rows} >= {*WORKED, *LAYOUTS, *SPELLINGS, *MISSES}
    for row in rows:
        if row.family in ("miss", "other_gold"):
            value = exact(str(row.answer))
            assert row.answer != row.gold and (value is None or value != exact(str(row.gold))), row.id


def test_own_forms_hold_the_answer_and_keep_the_label() -> None:
    worked = Row("worked/math500/0", "worked", "math500", "Hence $\\boxed{5}$.", "5", None, True)
    (sentence,) = rows_in(OWN_FORM["minerva_math"], [worked])
    assert sentence.completion.endswith("\nFinal Answer: The final answer is $5$. I hope it is correct.")
    (line,) = rows_in(OWN_FORM["math_dapo"], ROWS[2:3])
    assert line.completion.endswith("\nAnswer: \\frac{2}{4}") and line.label is True


@pytest.mark.process
@pytest.mark.parametrize("grader", GRADERS)
def test_each_grader_in_its_own_environment_tells_right_from_wrong(grader: str) -> None:
    if not (ROOT / grader / "packages.txt").exists():
        pytest.skip("its environment is made by `make graders`")
    rows = rows_in(OWN_FORM.get(grader, AS_WRITTEN), ROWS[:2])
    assert [reply.correct for reply in run_grader(ROOT / grader / "bin/python", grader, rows)] == [True, False]


def test_a_grader_that_raises_has_not_called_it_correct() -> None:
    reply = graded(lambda completion, gold: (bool(int(gold) / 0), None), {"id": "a", "completion": "", "gold": ["1"]})
    assert reply == {"id": "a", "correct": False, "extracted": None, "note": "raised ZeroDivisionError"}


@pytest.mark.parametrize(
    ("label", "theirs", "ours", "side"),
    [
        (True, True, True, "agree"),
        (True, False, False, "agree"),
        (False, True, False, "ours"),
        (False, False, True, "theirs"),
        (None, False, True, "open"),
        (False, None, False, "ours"),  # a grader that was killed has not said wrong
    ],
)
def test_sides_of_a_disagreement(label: bool | None, theirs: bool | None, ours: bool, side: str) -> None:
    row = Row("a", "layout", "display", "", "1", None, label)
    case = Case("math_dapo", AS_WRITTEN, row, Reply("a", theirs, None, ""), Reply("a", ours, None, ""))
    assert case.side == side


@pytest.mark.long
def test_the_page_counts_disagreements_on_the_side_of_the_label() -> None:
    """With the real math-verify of this environment and the real `rloop verify`."""
    replies, verdicts = run_grader(Path(sys.executable), "math_verify", ROWS), run_rloop(ROWS)
    compared = [Case("math_verify", AS_WRITTEN, *three) for three in zip(ROWS, replies, verdicts, strict=True)]
    assert [case.theirs.id for case in compared] == [case.ours.id for case in compared] == [row.id for row in ROWS]
    assert all(case.ours.correct is case.row.label for case in compared)
    wrong = {case.row.answer for case in compared if case.side == "ours"}
    assert wrong == {"4.5 \\times 10^{33}", "7.", "52_9"}
    assert "| math_verify | as written | 9 | 6 | 3 | 0 | 0 | 0 |" in page(compared)
