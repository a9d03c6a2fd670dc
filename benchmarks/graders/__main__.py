"""Compare rloop's verifier with independent graders: `make graders`, or `python -m benchmarks.graders math_dapo ...`.

Makes an environment for each grader below `.rloop/graders`, feeds all of them the same completions, and prints a page
of Markdown: the table, and every row on which rloop's verdict is not the label. It takes about half an hour.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.graders.corpus import AS_WRITTEN, DATA, OWN_FORM, Row, corpus, rows_in
from benchmarks.measure import machine, markdown_table, parse_names

ROOT = Path(__file__).parents[2] / ".rloop" / "graders"
"""Environments; ignored by git."""
SERVE = Path(__file__).parent / "serve.py"
_SYMPY = ("sympy==1.14.0", "mpmath==1.3.0")
_MATH_VERIFY = ("math-verify==0.9.0", "latex2sympy2_extended==1.11.0")
GRADERS = {
    "math_dapo": ("verl==0.9.1",),
    "minerva_math": ("lm-eval==0.4.13", *_MATH_VERIFY, *_SYMPY, "antlr4-python3-runtime==4.11.1"),
    "math_verify": (*_MATH_VERIFY, *_SYMPY, "antlr4-python3-runtime==4.13.2"),
}
"""Each grader's packages, pinned, installed without dependencies: gigabytes that grading does not use."""
_COLUMNS = {
    "rows": "rows",
    "agree": "says as rloop",
    "ours": "rloop right, grader wrong",
    "theirs": "grader right, rloop wrong",
    "open": "no label, they differ",
    "stopped": "killed or dead",
}
_SAYS = {True: "correct", False: "wrong"}


class Reply(NamedTuple):
    """A grader's reply to one row; `correct` is None if it was killed or died on it."""

    id: str
    correct: bool | None
    extracted: str | None
    note: str


class Case(NamedTuple):
    """One row in one form, a grader's reply to it, and rloop's."""

    grader: str
    form: str
    row: Row
    theirs: Reply
    ours: Reply

    @property
    def side(self) -> str:
        """agree; else whose reply is the label: ours or theirs; open if the row has no label."""
        if self.theirs.correct is not None and self.theirs.correct == bool(self.ours.correct):
            return "agree"
        if self.row.label is None:
            return "open"
        return "ours" if bool(self.ours.correct) == self.row.label else "theirs"


def main() -> None:
    """Run the comparison and print its page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.graders", description=__doc__)
    chosen = parse_names(parser, "grader", GRADERS).grader
    if not DATA.is_dir():
        sys.exit(f"no data in {DATA}: the problems and their worked solutions are not part of the project")
    rows, compared = corpus(), []
    verdicts: dict[str, list[Reply]] = {}
    for grader in chosen:
        for form in dict.fromkeys([AS_WRITTEN, OWN_FORM.get(grader, AS_WRITTEN)]):
            shaped = rows_in(form, rows)
            verdicts[form] = verdicts.get(form) or run_rloop(shaped)
            print(f"{grader}: {len(shaped)} rows {form}", file=sys.stderr, flush=True)
            replies = run_grader(environment(grader), grader, shaped)
            triples = zip(shaped, replies, verdicts[form], strict=True)
            compared += [Case(grader, form, *three) for three in triples]
    print(page(compared))


def environment(grader: str) -> Path:
    """Return the interpreter of a grader's environment, which is made if it is missing or has other packages."""
    folder, wanted = ROOT / grader, "\n".join(GRADERS[grader])
    stamp = folder / "packages.txt"
    if not stamp.exists() or stamp.read_text() != wanted:
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        pip = [str(folder / "bin/python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "--no-compile", "--no-deps", *GRADERS[grader]], check=True)
        stamp.write_text(wanted)
    return folder / "bin/python"


def run_grader(python: Path, judge: str, rows: Iterable[Row], limit: float = 20.0) -> list[Reply]:
    """Return one grader's reply to every row, in order; the process of a row that takes `limit` seconds is killed."""
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        file.writelines(json.dumps(row.request) + "\n" for row in rows)
        file.flush()
        command = [str(python), "-P", str(SERVE), judge, file.name, str(limit)]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
    return [Reply(**json.loads(line)) for line in done.stdout.splitlines()]


def run_rloop(rows: Iterable[Row]) -> list[Reply]:
    """Return the verdicts of the command `rloop verify`."""
    sent = [{"id": row.id, "completion": row.completion, "answer": row.gold} for row in rows]
    lines = "".join(json.dumps(row) + "\n" for row in sent)
    command = [sys.executable, "-m", "rloop_core", "verify"]
    done = subprocess.run(command, input=lines, stdout=subprocess.PIPE, text=True, check=True)
    replies = map(json.loads, done.stdout.splitlines())
    return [
        Reply(each["id"], None if each["verdict"] == "timeout" else each["correct"], each["extracted"], each["verdict"])
        for each in replies
    ]


def page(compared: list[Case]) -> str:
    """Return the comparison in Markdown: counts by (grader, form), and where rloop's verdict is not the label."""
    counts: dict[tuple[str, str], Counter[str]] = {}
    for case in compared:
        line = counts.setdefault((case.grader, case.form), Counter())
        line.update(["rows", case.side])
        line["stopped"] += case.theirs.correct is None
    table = [(*key, *(f"{line[column]:,}" for column in _COLUMNS)) for key, line in counts.items()]
    labelled = {(case.form, case.row.id): case for case in compared if case.row.label is not None}
    wrong = {key: case for key, case in labelled.items() if bool(case.ours.correct) != case.row.label}
    cells = [
        (*key, _flat(case.row.gold), _flat(case.ours.extracted), case.ours.note, _SAYS[bool(case.row.label)])
        for key, case in wrong.items()
    ]
    total = sum(case.form == AS_WRITTEN and case.grader == compared[0].grader for case in compared)
    return "\n".join(
        [
            "# Independent graders on the same completions",
            "",
            f"`make graders`; {machine()}.",
            *(f"{name}: {', '.join(pinned)}." for name, pinned in GRADERS.items()),
            "minerva_math is lm-eval's metric exact_match; its other metric is math-verify on the whole completion.",
            "",
            f"{total:,} completions, made the same way every time (`benchmarks/graders/corpus.py`). The label is fixed",
            "by the construction, or left open where it is a matter of convention. *As written* means the same",
            "completion for all. The graders that ask for another format are asked again in it.",
            "",
            *markdown_table(("grader", "form", *_COLUMNS.values()), table),
            "",
            f"## Where rloop's verdict is not the label: {len(wrong)} of {len(labelled):,} rows",
            "",
            *markdown_table(("form", "row", "gold", "answer read", "rloop", "should be"), cells),
        ]
    )


def _flat(value: Any) -> str:
    text = " ".join(str("" if value is None else value).split())
    return f"`{text}`" if len(text) <= 60 else f"`{text[:59]}…`"


if __name__ == "__main__":
    main()
