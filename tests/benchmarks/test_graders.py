"""The comparison with other graders: completions, a real grader, counting and report."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable, Iterator
from fractions import Fraction
from pathlib import Path

import pytest

from benchmarks.graders.corpus import (
    AS_WRITTEN,
    BOX,
    LAYOUTS,
    MISSES,
    OWN_FORM,
    SPELLINGS,
    WORKED,
    Row,
    corpus,
    fill,
    rows_in,
)
from benchmarks.graders.golds import DATA, exact, is_formula, last_box
from benchmarks.graders.grading import GRADERS, ROOT, Case, Grader, Reply, counts, kept_replies, run_grader, run_rloop
from benchmarks.graders.report import write_report
from tests.verifier.random_pairs import KINDS

needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the problem sets are not beside this clone")
ROWS = [
    Row(f"spelling/as_is/test/{number}", "spelling", "as_is", fill(BOX, answer, ""), gold, answer, label)
    for number, (answer, gold, label) in enumerate(
        [(str(number), str(number), True) for number in range(10)]
        + [(str(number + 1), str(number), False) for number in range(10)]
        + [
            *(("\\frac{2}{4}", "0.5", True), ("x+1", "1+x", True), ("\\sqrt{8}", "2\\sqrt{2}", True)),
            *(("(1,2)", "(2,1)", False), ("4.5 \\times 10^{33}", "4.5e33", True), ("7.", "7", True)),
            *(("52_9", "52_8", False), ("[0,1)", "[0,1]", False), ("\\{1,2\\}", "\\{2,1\\}", True)),
            ("\\text{no}", "\\text{yes}", False),
        ]
    )
]
REQUESTS = [row.request for row in ROWS]


@needs_data
def test_the_corpus_is_large_has_every_kind_of_row_and_its_labels_are_right() -> None:
    rows = corpus()
    assert len({row.id for row in rows}) == len(rows) > 4000
    labels = [row.label for row in rows]
    assert labels.count(True) > 2000 and labels.count(False) > 1500
    assert labels.count(None) < 0.05 * len(rows)
    assert {row.what for row in rows} >= {*WORKED, *LAYOUTS, *SPELLINGS, *MISSES, *(kind.__name__ for kind in KINDS)}
    for row in rows:
        if row.family in ("miss", "other_gold"):
            value = exact(str(row.answer))
            assert row.answer != row.gold and (value is None or value != exact(str(row.gold))), row.id


def test_golds_are_read_by_their_spelling() -> None:
    assert Fraction(1, 2) == exact("\\frac12") and exact("\\frac123") is None
    assert (exact("-\\frac{6}{4}"), exact("2.5e-1")) == (Fraction(-3, 2), Fraction(1, 4))
    assert is_formula("2^{n}") and not is_formula("x = 2")
    assert last_box("\\boxed{1} then \\boxed{\\frac{a}{b}} and }") == "\\frac{a}{b}"
    assert last_box("no box") == "" == last_box("\\boxed{1")


def test_own_forms_hold_the_answer_and_keep_the_label() -> None:
    worked = Row("worked/math500/0", "worked", "math500", "Hence $\\boxed{5}$.", "5", None, True)
    sentence = rows_in(OWN_FORM["minerva_math"], [worked])[0]
    assert sentence.completion.endswith("\nFinal Answer: The final answer is $5$. I hope it is correct.")
    line = rows_in(OWN_FORM["math_dapo"], ROWS[20:21])[0]
    assert line.completion.endswith("\nAnswer: \\frac{2}{4}") and line.label is True


@pytest.mark.process
@pytest.mark.parametrize("grader", GRADERS, ids=lambda grader: grader.name)
def test_each_grader_in_its_own_environment_tells_right_from_wrong(grader: Grader) -> None:
    if not (ROOT / grader.name / "packages.txt").exists():
        pytest.skip("its environment is made by `make graders`")
    form = OWN_FORM.get(grader.name, AS_WRITTEN)
    rows = [row for row in rows_in(form, ROWS) if row.answer in ("3", "10") and row.gold in ("3", "9")]
    replies = list(run_grader(grader.python(), grader.name, [row.request for row in rows]))
    assert [reply.correct for reply in replies] == [row.label for row in rows] == [True, False]


@pytest.mark.parametrize(
    ("label", "theirs", "ours", "side", "both_wrong"),
    [
        (True, True, True, "agree", False),
        (True, False, False, "agree", True),
        (False, True, False, "ours", False),
        (False, False, True, "theirs", False),
        (None, False, True, "open", False),
        (False, None, False, "ours", False),  # a grader that was killed has not said wrong
    ],
)
def test_sides_of_a_disagreement(
    label: bool | None, theirs: bool | None, ours: bool, side: str, both_wrong: bool
) -> None:
    row = Row("a", "layout", "display", "", "1", None, label)
    case = Case("math_dapo", AS_WRITTEN, row, Reply("a", theirs, None, ""), Reply("a", ours, None, ""))
    assert (case.side, case.both_wrong) == (side, both_wrong)


@pytest.mark.long
def test_a_row_that_hangs_or_kills_its_process_costs_its_own_reply_and_no_other(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(
        "import os, time\n\ndef judge(completion, gold):\n    completion == 'die' and os.abort()\n"
        "    completion == 'hang' and time.sleep(600)\n    return completion == gold, None\n"
    )
    rows = [{"id": word, "completion": word, "gold": "7"} for word in ("7", "hang", "8", "die", "7")]
    replies = list(run_grader(Path(sys.executable), str(tmp_path / "slow"), rows, limit=8))
    assert [(reply.id, reply.correct) for reply in replies] == [
        *(("7", True), ("hang", None), ("8", False), ("die", None), ("7", True)),
    ]
    assert (replies[1].note, replies[3].note) == ("killed after 8 s", "its process died")


def test_replies_are_asked_for_once(tmp_path: Path) -> None:
    asked: list[str] = []

    def ask(requests: Iterable[dict[str, str]]) -> Iterator[Reply]:
        for row in requests:
            asked.append(row["id"])
            yield Reply(row["id"], True, "1", "")

    path = tmp_path / "replies.jsonl"
    first = kept_replies(path, REQUESTS[:5], ask)
    with path.open("a") as file:
        file.write('{"key": "cut by an inter')  # and the next run starts on a fresh line
    assert kept_replies(path, REQUESTS[:6], ask)[:5] == first
    assert kept_replies(path, REQUESTS[:6], ask)[:5] == first
    assert asked == [row.id for row in ROWS[:6]]


@pytest.mark.long
def test_disagreements_are_counted_on_the_side_of_the_label_and_listed(tmp_path: Path) -> None:
    """With the real math-verify of this environment and the real `rloop verify` on thirty completions."""
    replies = list(run_grader(Path(sys.executable), "math_verify", REQUESTS))
    verdicts = list(run_rloop(REQUESTS))
    math_verify = [Case("math_verify", AS_WRITTEN, *three) for three in zip(ROWS, replies, verdicts, strict=True)]
    for side in ("theirs", "ours"):
        assert [getattr(case, side).id for case in math_verify] == [row.id for row in ROWS]
    assert all(case.theirs.correct is case.row.label for case in math_verify[:20])
    assert all(case.ours.correct is case.row.label for case in math_verify)
    line = counts(math_verify)["math_verify", AS_WRITTEN]
    assert line["rows"] == 30 == line["agree"] + line["ours"]
    page = write_report(math_verify, tmp_path, "2026-01-02").read_text(encoding="utf-8")
    assert "| math_verify | as written | 30 | 27 | 3 | 0 | 0 | 0 | 0 |" in page
    assert "as written: 0 of 30 rows" in page
    with (tmp_path / "2026-01-02-graders.csv").open(encoding="utf-8") as file:
        listed = {row["answer"]: (row["label"], row["rloop"], row["says"]) for row in csv.DictReader(file)}
    right = ("correct", "correct", "wrong")
    assert listed == {"4.5 \\times 10^{33}": right, "7.": right, "52_9": ("wrong", "wrong", "correct")}
