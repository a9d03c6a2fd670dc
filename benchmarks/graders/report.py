"""The comparison as two files: a page of tables and explanations, and every disagreement as a line of CSV."""

from __future__ import annotations

import csv
import os
import platform
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from benchmarks.graders.compare import Case, Cause, counts, find_cause
from benchmarks.graders.corpus import AS_WRITTEN, DOUBTFUL
from benchmarks.graders.environments import GRADERS
from benchmarks.measure import markdown_table

UNLISTED = "sentence"
"""The cause of every row without Minerva's sentence; its rows are counted, not listed."""
BY_HAND = ("<!-- by hand -->\n", "<!-- end -->\n")
"""Text between these in an earlier page is kept."""
_CELL = 60


def write_report(compared: list[Case], folder: Path, day: str) -> Path:
    """Write `<day>-graders.md` and `<day>-graders.csv`; return the path of the first."""
    folder.mkdir(parents=True, exist_ok=True)
    differing = [(case, find_cause(case)) for case in compared if case.side != "agree"]
    listed = _write_csv(differing, folder / f"{day}-graders.csv")
    page = folder / f"{day}-graders.md"
    parts = [
        _head(compared, day),
        _table(compared),
        _by_hand(page),
        _ours(compared),
        *(_grader(name, compared, differing) for name in dict.fromkeys(case.grader for case in compared)),
        _doubts(),
        f"Every disagreement is in [{day}-graders.csv]({day}-graders.csv) ({listed:,} rows): `+cause` where the grader "
        "says correct, `-cause` where it says wrong. Rows on which minerva_math differs for the missing sentence alone "
        "are left out.\n",
    ]
    page.write_text("\n".join(parts), encoding="utf-8")
    return page


def _head(compared: list[Case], day: str) -> str:
    packages = "; ".join(f"{grader.name}: {', '.join(grader.packages)}" for grader in GRADERS)
    rows = sum(1 for case in compared if case.form == AS_WRITTEN and case.grader == compared[0].grader)
    return f"""# Independent graders on the same completions, {day}

`make graders`; {os.cpu_count()} cores ({platform.machine()}), Python {platform.python_version()}. {packages}.
minerva_math is lm-eval's metric exact_match; its other metric is math-verify on the whole completion, the last column.

{rows:,} completions, made the same way every time: worked solutions of MATH-500, Minerva, AIME 2024, Omni-MATH and
GSM8K; their golds in other notations (right), near misses and other problems' golds (wrong); layouts with several
boxes, text after the answer, chat markers, open boxes; the 45 verifier examples; hostile answers. The label is fixed
by the construction, or left open where it is a matter of convention. *As written* means the same completion for all;
most of them hold a box. The graders that ask for another format are asked again in it, with the same answers.
"""


def _by_hand(page: Path) -> str:
    """Return the part of an earlier page that was written by hand, with its marks."""
    begin, end = BY_HAND
    text = page.read_text(encoding="utf-8") if page.exists() else ""
    return begin + text.partition(begin)[2].partition(end)[0] + end


def _table(compared: list[Case]) -> str:
    columns = {
        "rows": "rows",
        "agree": "says as rloop",
        "ours": "rloop right, grader wrong",
        "theirs": "grader right, rloop wrong",
        "open": "no label, they differ",
        "both_wrong": "both wrong",
        "stopped": "killed or dead",
    }
    rows = [(*key, *(f"{line[column]:,}" for column in columns)) for key, line in counts(compared).items()]
    return "\n".join(markdown_table(("grader", "form", *columns.values()), rows)) + "\n"


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
            _code(case.row.gold),
            _code(case.ours.extracted),
            case.ours.note,
            "correct" if case.row.label else "wrong",
            ", ".join(right[key]) or "none",
        )
        for key, case in wrong.items()
    ]
    lines = [
        "## Where rloop's verdict is not the label\n",
        f"{counted}.\n",
        *(markdown_table(header, cells) if cells else []),
    ]
    return "\n".join(lines) + "\n"


def _grader(name: str, compared: list[Case], differing: list[tuple[Case, Cause]]) -> str:
    by_cause: dict[Cause, list[Case]] = {}
    for case, cause in differing:
        if case.grader == name:
            by_cause.setdefault(cause, []).append(case)
    rows = []
    for cause, explained in by_cause.items():
        sides = Counter(case.side for case in explained)
        kinds = Counter(case.row.what for case in explained)
        named = ", ".join(f"{what} {count}" for what, count in kinds.most_common(8))
        more = f" and {len(kinds) - 8} more" if len(kinds) > 8 else ""
        numbers = (str(sides[side]) for side in ("ours", "theirs", "open"))
        rows.append((cause.name, cause.why, *numbers, f"{named}{more}", _example(explained)))
    header = ("cause", "explanation", "rloop right", "grader right", "no label", "kinds of rows", "for example")
    lines = [f"## {name}\n", *markdown_table(header, rows)]
    stopped = [case for case in compared if case.grader == name and case.theirs.correct is None]
    lines += [f"\nNo reply: {case.row.id} ({case.form}), {case.theirs.note}." for case in stopped]
    return "\n".join(lines) + "\n"


def _example(explained: list[Case]) -> str:
    case = min(explained, key=_plainness)
    says = {True: "correct", False: "wrong", None: "nothing"}[case.theirs.correct]
    return f"{_code(case.row.answer or case.ours.extracted)} for {_code(case.row.gold)}: {says}"


def _plainness(case: Case) -> tuple[bool, int]:
    """Sort short pairs with different spellings first: they show the most."""
    answer = _flat(case.row.answer or case.ours.extracted)
    return answer in ("", _flat(case.row.gold)), len(answer) + len(str(case.row.gold))


def _doubts() -> str:
    lines = "\n".join(f"- {row}: {why}." for row, why in DOUBTFUL.items())
    return f"## Worked solutions without a label\n\nThey do not say what their gold says:\n\n{lines}\n"


def _write_csv(differing: Iterable[tuple[Case, Cause]], path: Path) -> int:
    """Write one line for each row with a disagreement: rloop's verdict in each form, and each grader's cause."""
    rows: dict[str, dict[str, str]] = {}
    columns = ["id", "label", "gold", "answer"]
    for case, cause in differing:
        ours, theirs = f"rloop, {case.form}", f"{case.grader}, {case.form}"
        columns += [column for column in (ours, theirs) if column not in columns]
        line = rows.setdefault(
            case.row.id, {"id": case.row.id, "label": "", "gold": _flat(case.row.gold), "answer": ""}
        )
        line["label"] = line["label"] or {True: "right", False: "wrong", None: ""}[case.row.label]
        line["answer"] = line["answer"] or _flat(case.row.answer or case.ours.extracted)
        line[ours] = case.ours.note
        line[theirs] = {True: "+", False: "-", None: "?"}[case.theirs.correct] + cause.name
    kept = [line for line in rows.values() if _is_listed(line)]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(kept)
    return len(kept)


def _is_listed(line: dict[str, str]) -> bool:
    causes = [value[1:] for column, value in line.items() if value[:1] in "+-?" and ", " in column]
    return any(name != UNLISTED for name in causes)


def _flat(value: object) -> str:
    text = " ".join(str("" if value is None else value).split())
    return text if len(text) <= _CELL else text[: _CELL - 1] + "…"


def _code(value: object) -> str:
    return f"`{_flat(value)}`" if _flat(value) else ""
