"""Ask each grader, in an environment of its own, about every completion, and keep its replies beside rloop's."""

from __future__ import annotations

import contextlib
import hashlib
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.graders.corpus import AS_WRITTEN, OWN_FORM, Row, rows_in

ROOT = Path(__file__).parents[2] / ".rloop" / "graders"
"""Environments, and the replies of earlier comparisons; ignored by git."""
SERVE = Path(__file__).parent / "serve.py"
_SYMPY = ("sympy==1.14.0", "mpmath==1.3.0")
_MATH_VERIFY = ("math-verify==0.9.0", "latex2sympy2_extended==1.11.0")
_ANTLR = "antlr4-python3-runtime==4.11.1"
Request = dict[str, Any]
"""id, completion and gold."""


@dataclass(frozen=True)
class Grader:
    """A grader; `name` is that of its file in judges/ too."""

    name: str
    packages: tuple[str, ...]
    """Everything it needs, pinned, installed without dependencies: gigabytes that grading does not use."""

    def python(self) -> Path:
        """Return the interpreter of its environment, which is made if it is missing or has other packages."""
        folder = ROOT / self.name
        stamp = folder / "packages.txt"
        wanted = "\n".join(self.packages)
        if not stamp.exists() or stamp.read_text() != wanted:
            subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
            pip = [str(folder / "bin/python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            subprocess.run([*pip, "--no-compile", "--no-deps", *self.packages], check=True)
            stamp.write_text(wanted)
        return folder / "bin/python"


GRADERS = [
    Grader("math_dapo", ("verl==0.9.1",)),
    Grader("prime_math", ("verl==0.9.1", *_SYMPY, "pylatexenc==2.10", _ANTLR, "numpy==2.4.6")),
    Grader("minerva_math", ("lm-eval==0.4.13", *_MATH_VERIFY, *_SYMPY, _ANTLR)),
    Grader("math_verify", (*_MATH_VERIFY, *_SYMPY, "antlr4-python3-runtime==4.13.2")),
]


@dataclass(frozen=True)
class Reply:
    """A grader's reply to one row; `correct` is None if it was killed or died on it."""

    id: str
    correct: bool | None
    extracted: str | None
    note: str


@dataclass(frozen=True)
class Case:
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

    @property
    def both_wrong(self) -> bool:
        return self.side == "agree" and self.row.label is not None and self.theirs.correct != self.row.label


def cases(rows: list[Row], graders: Iterable[Grader], log: Callable[[str], None]) -> list[Case]:
    """Ask every grader about every form of the rows, and rloop about the same completions."""
    compared: list[Case] = []
    verdicts: dict[str, list[Reply]] = {}
    for grader in graders:
        for form in [AS_WRITTEN, *([OWN_FORM[grader.name]] if grader.name in OWN_FORM else [])]:
            shaped = rows_in(form, rows)
            requests = [row.request for row in shaped]
            if form not in verdicts:
                log(f"rloop: {len(shaped)} rows {form}")
                verdicts[form] = list(run_rloop(requests))
            log(f"{grader.name}: {len(shaped)} rows {form}")
            path = ROOT / "replies" / f"{grader.name}-{grader.packages[0]}.jsonl"
            replies = kept_replies(path, requests, partial(run_grader, grader.python(), grader.name))
            compared += [
                Case(grader.name, form, row, theirs, ours)
                for row, theirs, ours in zip(shaped, replies, verdicts[form], strict=True)
            ]
    return compared


def counts(compared: Iterable[Case]) -> dict[tuple[str, str], Counter[str]]:
    """Count by (grader, form): rows, the sides, both_wrong, and stopped (no reply: killed or dead)."""
    table: dict[tuple[str, str], Counter[str]] = {}
    for case in compared:
        line = table.setdefault((case.grader, case.form), Counter())
        line.update(["rows", case.side])
        line["both_wrong"] += case.both_wrong
        line["stopped"] += case.theirs.correct is None
    return table


def run_grader(python: Path, judge: str, rows: Iterable[Request], limit: float = 20.0) -> Iterator[Reply]:
    """Yield one grader's reply to every row, in order; the process of a row that takes `limit` seconds is killed.

    Raises:
        RuntimeError: The grader does not start.
    """
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
        file.flush()
        command = [str(python), "-P", str(SERVE), judge, file.name, str(limit)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
            assert process.stdout
            for line in process.stdout:
                yield Reply(**json.loads(line))
        if process.returncode:
            raise RuntimeError(f"{' '.join(command)} ended with exit code {process.returncode}")


def run_rloop(rows: Iterable[Request]) -> Iterator[Reply]:
    """Yield the verdicts of the command `rloop verify`."""
    sent = [{"id": row["id"], "completion": row["completion"], "answer": row["gold"]} for row in rows]
    done = subprocess.run(
        [sys.executable, "-m", "rloop_core", "verify"],
        input="".join(json.dumps(row) + "\n" for row in sent),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    for line in done.stdout.splitlines():
        row = json.loads(line)
        correct = None if row["verdict"] == "timeout" else row["correct"]
        yield Reply(row["id"], correct, row["extracted"], row["verdict"])


def kept_replies(
    path: Path, rows: Sequence[Request], ask: Callable[[Iterable[Request]], Iterable[Reply]]
) -> list[Reply]:
    """Return a reply to each row, in order: from the file if the same row is there, else by asking.

    The file (JSON lines) is appended to as replies come, so that an interrupted run is continued.
    """
    known = dict(_read_replies(path))
    missing = [row for row in rows if _key(row) not in known]
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        if file.tell() and not path.read_bytes().endswith(b"\n"):
            file.write("\n")
        for row, reply in zip(missing, ask(missing), strict=True):
            known[_key(row)] = reply
            file.write(json.dumps({"key": _key(row), **asdict(reply)}) + "\n")
    return [known[_key(row)] for row in rows]


def _key(row: Request) -> str:
    return hashlib.sha256(json.dumps([row["id"], row["completion"], row["gold"]]).encode()).hexdigest()[:24]


def _read_replies(path: Path) -> Iterator[tuple[str, Reply]]:
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        with contextlib.suppress(ValueError):  # a line cut by an interrupt: its row is asked again
            fields = json.loads(line)
            yield fields.pop("key"), Reply(**fields)
