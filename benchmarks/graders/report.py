"""The comparison as two files: a page of tables, and every disagreement as a line of CSV."""

from __future__ import annotations

import csv
import os
import platform
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from benchmarks.graders.corpus import AS_WRITTEN
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
    total = sum(1 for case in compared if case.form == AS_WRITTEN and case.grader == compared[0].grader)
    page = folder / f"{day}-graders.md"
    page.write_text(
        f"# Independent graders on the same completions, {day}\n\n"
        f"`make graders`; {os.cpu_count()} cores ({platform.machine()}), Python {platform.python_version()}.\n"
        + "".join(f"{grader.name}: {', '.join(grader.packages)}.\n" for grader in GRADERS)
        + "minerva_math is lm-eval's metric exact_match; its other metric is math-verify on the whole completion.\n\n"
        f"{total:,} completions, made the same way every time (`benchmarks/graders/corpus.py`). The label is fixed by "
        "the construction,\nor left open where it is a matter of convention. *As written* means the same completion "
        "for all. The graders that ask for\nanother format are asked again in it, with the same answers.\n\n"
        + _table(("grader", "form", *_COLUMNS.values()), rows)
        + _ours(compared)
        + f"\nEvery disagreement is in [{day}-graders.csv]({day}-graders.csv) ({len(listed):,} lines), but for rows "
        "in which\nminerva_math finds no sentence of Minerva's.\n",
        encoding="utf-8",
    )
    return page


def _table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    return "\n".join(markdown_table(header, rows)) + "\n" if rows else ""


def _ours(compared: list[Case]) -> str:
    """List the rows on which rloop's verdict is not the label, each once in each form."""
    labelled = {(case.form, case.row.id): case for case in compared if case.row.label is not None}
    wrong = {key: case for key, case in labelled.items() if bool(case.ours.correct) != case.row.label}
    rows = Counter(form for form, _ in labelled)
    counted = "; ".join(f"{form}: {sum(key[0] == form for key in wrong)} of {rows[form]:,} rows" for form in rows)
    header = ("form", "row", "gold", "answer read", "rloop", "should be")
    cells = [
        (*key, f"`{_flat(case.row.gold)}`", f"`{_flat(case.ours.extracted)}`", case.ours.note, _SAYS[case.row.label])
        for key, case in wrong.items()
    ]
    return f"\n## Where rloop's verdict is not the label\n\n{counted}.\n\n{_table(header, cells)}"


def _flat(value: object) -> str:
    text = " ".join(str("" if value is None else value).split())
    return text if len(text) <= _CELL else text[: _CELL - 1] + "…"
