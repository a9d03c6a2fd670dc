"""Feed completions to a grader in a process of its own, and keep its replies; a row that hangs loses no other."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

SERVE = Path(__file__).parent / "serve.py"
START_SECONDS = 120.0
Request = dict[str, Any]
"""id, completion and gold."""


@dataclass(frozen=True)
class Reply:
    """A grader's reply to one row; `correct` is None if it was killed or died on it."""

    id: str
    correct: bool | None
    extracted: str | None
    note: str


class GraderProcess:
    """One grader's process, started for the first row and again after each kill.

    Args:
        python: Interpreter of the grader's environment.
        judge: Name of its file in judges/.
        limit: Seconds for one row; then the process and its children are killed.
    """

    def __init__(self, python: Path, judge: str, limit: float) -> None:
        self._command = [str(python), "-P", str(SERVE), judge]
        self.limit = limit
        self._process: subprocess.Popen[bytes] | None = None
        self._read = b""

    def grade(self, row: Request) -> Reply:
        """Return the reply to one row."""
        process = self._running()
        assert process.stdin
        try:
            process.stdin.write(json.dumps(row).encode() + b"\n")
            process.stdin.flush()
            reply = self._next(self.limit)
        except OSError:
            reply = None
        if isinstance(reply, dict):
            return Reply(reply["id"], reply["correct"], reply["extracted"], reply["note"])
        hung = process.poll() is None
        self.close()
        return Reply(row["id"], None, None, f"killed after {self.limit:g} s" if hung else "its process died")

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            self._read = b""
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            if not self._next(START_SECONDS):
                self.close()
                raise RuntimeError(f"{' '.join(self._command)} does not start")
        return self._process

    def _next(self, seconds: float) -> Any:
        """Read the next line of the process; None if it does not come in time, or never."""
        assert self._process and self._process.stdout
        while b"\n" not in self._read:
            if not select.select([self._process.stdout], [], [], seconds)[0]:
                return None
            chunk = os.read(self._process.stdout.fileno(), 1 << 16)
            if not chunk:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(5)
                return None
            self._read += chunk
        line, self._read = self._read.split(b"\n", 1)
        return json.loads(line)

    def close(self) -> None:
        """Kill the process and its children."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None


def run_grader(python: Path, judge: str, rows: Iterable[Request], limit: float = 20.0) -> Iterator[Reply]:
    """Yield one grader's reply to every row, in order."""
    process = GraderProcess(python, judge, limit)
    try:
        for row in rows:
            yield process.grade(row)
    finally:
        process.close()


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

    Args:
        path: JSON lines, one reply each; appended to as replies come, so that an interrupted run is continued.
        rows: The rows.
        ask: Replies to rows, in order.
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
