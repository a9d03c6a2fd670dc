"""The comparison with other graders: completions, a real grader, grouping and report."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from pathlib import Path

import pytest

from benchmarks.graders.compare import Case, counts, known_causes
from benchmarks.graders.corpus import AS_WRITTEN, OWN_FORM, WORKED, Row, corpus, rows_in
from benchmarks.graders.environments import GRADERS, ROOT, Grader
from benchmarks.graders.layouts import BOX, LAYOUTS, fill
from benchmarks.graders.report import BY_HAND, write_report
from benchmarks.graders.runner import GraderProcess, Reply, kept_replies, run_grader, run_rloop
from benchmarks.graders.shapes import exact
from benchmarks.graders.sources import DATA, last_box, lines
from benchmarks.graders.variants import MISSES, REWRITINGS, near_misses, rewritings

needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the problem sets are not beside this clone")
ROWS = [
    Row(f"notation/as_is/test/{number}", "notation", "as_is", fill(BOX, answer, ""), gold, answer, label)
    for number, (answer, gold, label) in enumerate(
        [(str(number), str(number), True) for number in range(10)]
        + [(str(number + 1), str(number), False) for number in range(10)]
        + [
            ("\\frac{2}{4}", "0.5", True),
            ("x+1", "1+x", True),
            ("\\sqrt{8}", "2\\sqrt{2}", True),
            ("(1,2)", "(2,1)", False),
        ]
        + [
            ("4.5 \\times 10^{33}", "4.5e33", True),
            ("7.", "7", True),
            ("52_9", "52_8", False),
            ("[0,1)", "[0,1]", False),
        ]
        + [("\\{1,2\\}", "\\{2,1\\}", True), ("\\text{no}", "\\text{yes}", False)]
    )
]
REQUESTS = [row.request for row in ROWS]


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return corpus()


@pytest.fixture(scope="module")
def math_verify() -> Iterator[list[Case]]:
    """The real math-verify of this environment and the real `rloop verify` on thirty completions."""
    replies = list(run_grader(Path(sys.executable), "math_verify", REQUESTS))
    verdicts = list(run_rloop(REQUESTS))
    yield [Case("math_verify", AS_WRITTEN, *three) for three in zip(ROWS, replies, verdicts, strict=True)]


@needs_data
def test_the_corpus_is_the_same_every_time_and_large_enough(rows: list[Row]) -> None:
    assert rows == corpus()
    assert len({row.id for row in rows}) == len(rows) > 5000
    labels = [row.label for row in rows]
    assert labels.count(True) > 2500 and labels.count(False) > 1500
    assert labels.count(None) < 0.05 * len(rows)


@needs_data
def test_every_kind_of_row_is_there(rows: list[Row]) -> None:
    kinds = {row.what for row in rows}
    assert kinds >= set(WORKED) | {layout.name for layout in LAYOUTS}
    assert len((set(REWRITINGS) | set(MISSES)) - kinds) == 0


@needs_data
def test_a_wrong_answer_never_has_the_value_of_its_gold(rows: list[Row]) -> None:
    made = [
        row for row in rows if row.family in ("near_miss", "other_gold") and row.answer and isinstance(row.gold, str)
    ]
    assert len(made) > 1500
    for row in made:
        value = exact(str(row.answer))
        assert row.answer != row.gold and (value is None or value != exact(str(row.gold))), row.id


@needs_data
def test_a_right_answer_whose_value_is_plain_has_the_value_of_its_gold(rows: list[Row]) -> None:
    checked = 0
    for row in rows:
        value = exact(str(row.answer)) if row.family == "notation" and row.label else None
        if value is not None and exact(str(row.gold)) is not None:
            assert value == exact(str(row.gold)), row.id
            checked += 1
    assert checked > 500


@pytest.mark.parametrize(
    ("make", "gold", "what", "answer"),
    [
        (rewritings, "\\frac{7}{2}", "mixed", "3\\frac{1}{2}"),
        (rewritings, "-\\frac{7}{2}", "unreduced", "-\\frac{21}{6}"),
        (rewritings, "\\frac{3}{8}", "as_decimal", "0.375"),
        (rewritings, "0.15", "as_fraction", "\\frac{3}{20}"),
        (rewritings, "4.5e33", "times_ten", "4.5 \\times 10^{33}"),
        (rewritings, "671.02", "scientific_e", "6.7102e2"),
        (rewritings, "12345", "comma", "12,345"),
        (rewritings, "3, 5, 7", "reversed_list", "7, 5, 3"),
        (rewritings, "2 + 3\\sqrt{5} - x", "commuted", "- x + 3\\sqrt{5} +2"),
        (rewritings, "1 \\pm \\sqrt{19}", "plus_minus", "1 + \\sqrt{19}, 1 - \\sqrt{19}"),
        (rewritings, "(3,4]", "inequality", "3 < x \\le 4"),
        (near_misses, "\\frac{3}{8}", "inverted", "\\frac{8}{3}"),
        (near_misses, "\\frac{1}{3}", "rounded", "0.3333"),
        (near_misses, "(1, 2, 3)", "swapped", "(3, 2, 1)"),
        (near_misses, "(3,4]", "left_bracket", "[3, 4]"),
        (near_misses, "4.5e33", "power_of_ten", "4.5e34"),
        (near_misses, "52_8", "other_base", "52_9"),
        (near_misses, "\\{1, 2\\}", "one_less", "\\{1\\}"),
    ],
)
def test_variants(make: Callable[[str], list[tuple[str, str]]], gold: str, what: str, answer: str) -> None:
    assert dict(make(gold))[what] == answer


def test_unions_are_not_taken_for_pairs() -> None:
    assert "left_right" not in dict(rewritings("(0, 4) \\cup (5, 9]"))
    assert Fraction(1, 2) == exact("\\frac12") and exact("\\frac123") is None


def test_the_last_box_is_the_balanced_one() -> None:
    assert last_box("\\boxed{1} then \\boxed{\\frac{a}{b}} and }") == "\\frac{a}{b}"
    assert last_box("no box") == "" == last_box("\\boxed{1")


def test_own_forms_hold_the_answer_and_keep_the_label() -> None:
    worked = Row("worked/math500/0", "worked", "math500", "Hence $\\boxed{5}$.", "5", None, True)
    sentence = rows_in(OWN_FORM["minerva_math"], [worked])[0]
    assert sentence.completion.endswith("\nFinal Answer: The final answer is $5$. I hope it is correct.")
    line = rows_in(OWN_FORM["math_dapo"], ROWS[20:21])[0]
    assert line.completion.endswith("\nAnswer: \\frac{2}{4}") and line.label is True


@pytest.mark.process
def test_a_real_grader_answers_every_row_in_order(math_verify: list[Case]) -> None:
    assert (
        [case.theirs.id for case in math_verify] == [row.id for row in ROWS] == [case.ours.id for case in math_verify]
    )
    assert all(case.theirs.correct is case.row.label for case in math_verify[:20])
    assert all(case.ours.correct is case.row.label for case in math_verify)


@pytest.mark.process
@pytest.mark.parametrize("grader", GRADERS, ids=lambda grader: grader.name)
def test_each_grader_in_its_own_environment_tells_right_from_wrong(grader: Grader) -> None:
    if not (ROOT / grader.name / "packages.txt").exists():
        pytest.skip("its environment is made by `make graders`")
    form = OWN_FORM.get(grader.name, AS_WRITTEN)
    rows = [row for row in rows_in(form, ROWS) if row.answer in ("3", "10") and row.gold in ("3", "9")]
    replies = list(run_grader(grader.python(), grader.name, [row.request for row in rows]))
    assert [reply.correct for reply in replies] == [row.label for row in rows] == [True, False]


@pytest.mark.process
def test_disagreements_are_counted_on_the_side_of_the_label_and_explained(math_verify: list[Case]) -> None:
    line = counts(math_verify)["math_verify", AS_WRITTEN]
    assert line["rows"] == 30 == line["agree"] + line["ours"]
    differing = {case.row.answer for case in math_verify if case.side == "ours"}
    assert differing == {"4.5 \\times 10^{33}", "7.", "52_9"}


def test_sides_of_a_disagreement() -> None:
    def side(label: bool | None, theirs: bool | None, ours: bool) -> tuple[str, bool]:
        row = Row("a", "layout", "display", "", "1", None, label)
        case = Case("math_dapo", AS_WRITTEN, row, Reply("a", theirs, None, ""), Reply("a", ours, None, ""))
        return case.side, case.both_wrong

    assert side(True, True, True) == ("agree", False)
    assert side(True, False, False) == ("agree", True)
    assert side(False, True, False) == ("ours", False)
    assert side(False, False, True) == ("theirs", False)
    assert side(None, False, True) == ("open", False)
    assert side(False, None, False) == ("ours", False), "a grader that was killed has not said wrong"


@pytest.mark.process
def test_a_row_that_hangs_costs_its_own_reply_and_no_other() -> None:
    grader = GraderProcess(Path(sys.executable), "math_verify", limit=0.0)
    replies = []
    try:
        for answer, grader.limit in (("7", 120.0), ("9^{9^{9}}", 0.5), ("7", 120.0)):
            replies.append(grader.grade({"id": answer, "completion": f"$\\boxed{{{answer}}}$", "gold": "7"}))
    finally:
        grader.close()
    assert [reply.correct for reply in replies] == [True, None, True]
    assert replies[1].note == "killed after 0.5 s"


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


@pytest.mark.process
def test_the_report_lists_every_disagreement(math_verify: list[Case], tmp_path: Path) -> None:
    page = write_report(math_verify, tmp_path, "2026-01-02").read_text(encoding="utf-8")
    assert "| math_verify | as written | 30 | 27 | 3 | 0 | 0 | 0 | 0 |" in page
    assert "as written: 0 of 30 rows" in page
    with (tmp_path / "2026-01-02-graders.csv").open(encoding="utf-8") as file:
        listed = {row["answer"]: row["math_verify, as written"] for row in csv.DictReader(file)}
    assert set(listed) == {"4.5 \\times 10^{33}", "7.", "52_9"}
    assert listed["52_9"].startswith("+") and listed["7."].startswith("-")


@pytest.mark.process
def test_what_was_written_into_the_page_by_hand_stays(math_verify: list[Case], tmp_path: Path) -> None:
    page = write_report(math_verify, tmp_path, "2026-01-02")
    page.write_text(page.read_text(encoding="utf-8").replace("".join(BY_HAND), "A remark.\n".join(BY_HAND)))
    again = write_report(math_verify[:3], tmp_path, "2026-01-02").read_text(encoding="utf-8")
    assert again.count("A remark.") == 1 and "| 3 | 3 | 0 |" in again


def test_causes_name_rows_and_graders_that_exist() -> None:
    examples = {row["category"] for row in lines("verifier_examples")} if DATA.is_dir() else None
    kinds = {*REWRITINGS, *MISSES, *WORKED, *(layout.name for layout in LAYOUTS)}
    kinds |= {"as_is", "other_gold", "omni_math_rule", "unboxed", "hostile"}
    for cause in known_causes():
        assert set(cause.graders) <= {"math_dapo", "prime_math", "minerva_math", "math_verify"}
        assert cause.why.endswith(".")
        assert examples is None or set(cause.rows) <= kinds | examples, cause
