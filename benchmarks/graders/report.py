"""The comparison as two files: a page of tables, and every disagreement as a line of CSV."""

from __future__ import annotations

import csv
import os
import platform
from collections import Counter
from pathlib import Path

from benchmarks.graders.corpus import AS_WRITTEN, DOUBTFUL
from benchmarks.graders.grading import GRADERS, Case, counts
from benchmarks.measure import markdown_table

UNREAD = "[invalidanswer]"
"""What minerva_math reads without Minerva's sentence; such rows are counted, not listed."""
_SAYS = {True: "correct", False: "wrong", None: "none"}
_CELL = 60
_COLUMNS = {
    "rows": "rows",
    "agree": "says as rloop",
    "ours": "rloop right, grader wrong",
    "theirs": "grader right, rloop wrong",
    "open": "no label, they differ",
    "both_wrong": "both wrong",
    "stopped": "killed or dead",
}


def write_report(compared: list[Case], folder: Path, day: str) -> Path:
    """Write `<day>-graders.md` and `<day>-graders.csv`; return the path of the first."""
    folder.mkdir(parents=True, exist_ok=True)
    listed = [case for case in compared if case.side != "agree" and case.theirs.extracted != UNREAD]
    with (folder / f"{day}-graders.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["id", "form", "gold", "answer", "label", "rloop", "grader", "says", "read", "note"])
        for case in listed:
            said = (_SAYS[case.row.label], case.ours.note, case.grader, _SAYS[case.theirs.correct])
            shown = (_flat(case.row.gold), _flat(case.row.answer or case.ours.extracted))
            writer.writerow([case.row.id, case.form, *shown, *said, _flat(case.theirs.extracted), case.theirs.note])
    rows = [(*key, *(f"{line[column]:,}" for column in _COLUMNS)) for key, line in counts(compared).items()]
    doubts = "\n".join(f"- {row}: {why}." for row, why in DOUBTFUL.items())
    parts = [
        _head(compared, day),
        _table(("grader", "form", *_COLUMNS.values()), rows),
        _ours(compared),
        *(_grader(name, listed) for name in dict.fromkeys(case.grader for case in compared)),
        f"## Worked solutions without a label\n\nThey do not say what their gold says:\n\n{doubts}\n",
        f"Every disagreement is in [{day}-graders.csv]({day}-graders.csv) ({len(listed):,} lines), but for rows in "
        "which minerva_math finds no sentence of Minerva's.\n",
    ]
    page = folder / f"{day}-graders.md"
    page.write_text("\n".join(parts), encoding="utf-8")
    return page


def _head(compared: list[Case], day: str) -> str:
    packages = "; ".join(f"{grader.name}: {', '.join(grader.packages)}" for grader in GRADERS)
    rows = sum(1 for case in compared if case.form == AS_WRITTEN and case.grader == compared[0].grader)
    return f"""# Independent graders on the same completions, {day}

`make graders`; {os.cpu_count()} cores ({platform.machine()}), Python {platform.python_version()}. {packages}.
minerva_math is lm-eval's metric exact_match; its other metric is math-verify on the whole completion, the last column.

{rows:,} completions, made the same way every time: worked solutions of MATH-500, Minerva, AIME 2024, Omni-MATH and
GSM8K; their golds in other spellings (right), altered, and other problems' golds (wrong); generated pairs whose truth
is known; layouts with several boxes, text after the answer, chat markers, open boxes; the 45 verifier examples; hostile
answers. The label is fixed by the construction, or left open where it is a matter of convention. *As written* means the
same completion for all; most of them hold a box. The graders that ask for another format are asked again in it, with
the same answers.
"""


def _table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    return "\n".join(markdown_table(header, rows)) + "\n" if rows else ""


def _ours(compared: list[Case]) -> str:
    """List the rows on which rloop's verdict is not the label, each once in each form."""
    labelled = {(case.form, case.row.id): case for case in compared if case.row.label is not None}
    wrong = {key: case for key, case in labelled.items() if bool(case.ours.correct) != case.row.label}
    right: dict[tuple[str, str], list[str]] = {key: [] for key in wrong}
    for case in compared:
        if (case.form, case.row.id) in right and case.theirs.correct == case.row.label:
            right[case.form, case.row.id].append(case.grader)
    rows = Counter(form for form, _ in labelled)
    counted = "; ".join(f"{form}: {sum(key[0] == form for key in wrong)} of {rows[form]:,} rows" for form in rows)
    header = ("form", "row", "gold", "answer read", "rloop", "should be", "who has it right")
    cells = [
        (
            *key,
            *(_code(case.row.gold), _code(case.ours.extracted), case.ours.note),
            *(_SAYS[case.row.label], ", ".join(right[key]) or "none"),
        )
        for key, case in wrong.items()
    ]
    return f"## Where rloop's verdict is not the label\n\n{counted}.\n\n{_table(header, cells)}"


def _grader(name: str, listed: list[Case]) -> str:
    """Count a grader's disagreements by kind of row and reply."""
    by_kind: dict[tuple[str, str, str], list[Case]] = {}
    for case in listed:
        if case.grader == name:
            by_kind.setdefault((case.row.what, case.form, _SAYS[case.theirs.correct]), []).append(case)
    rows = []
    for kind, differing in by_kind.items():
        sides = Counter(case.side for case in differing)
        case = min(differing, key=_plainness)
        example = f"{_code(case.row.answer or case.ours.extracted)} for {_code(case.row.gold)}"
        rows.append((*kind, *(str(sides[side]) for side in ("ours", "theirs", "open")), example))
    header = ("kind of row", "form", "the grader says", "rloop right", "grader right", "no label", "for example")
    stopped = [f"\nNo reply: {case.row.id} ({case.form}), {case.theirs.note}." for case in listed
               if case.grader == name and case.theirs.correct is None]  # fmt: skip
    return "\n".join([f"## {name}\n", _table(header, rows), *stopped]) + "\n"


def _plainness(case: Case) -> tuple[bool, int]:
    """Sort short pairs with different spellings first: they show the most."""
    answer = _flat(case.row.answer or case.ours.extracted)
    return answer in ("", _flat(case.row.gold)), len(answer) + len(str(case.row.gold))


def _flat(value: object) -> str:
    text = " ".join(str("" if value is None else value).split())
    return text if len(text) <= _CELL else text[: _CELL - 1] + "…"


def _code(value: object) -> str:
    return f"`{_flat(value)}`" if _flat(value) else ""
