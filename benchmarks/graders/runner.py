"""Feed completions to a grader in a process of its own; one that hangs or dies costs its row and no other."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SERVE = Path(__file__).parent / "serve.py"
START_SECONDS = 120.0


@dataclass(frozen=True)
class Reply:
    """What a grader says of one row; correct is None when it was killed or died over it."""

    id: str
    correct: bool | None
    extracted: str | None
    note: str


class GraderProcess:
    """One grader's process, started when first needed and again after each kill.

    Args:
        python: The interpreter that has the grader.
        judge: The name of its file in judges/.
        limit: Seconds for one row; then the process and its children are killed.
    """

    def __init__(self, python: Path, judge: str, limit: float) -> None:
        self._command = [str(python), "-P", str(SERVE), judge]
        self.limit = limit
        self._process: subprocess.Popen[bytes] | None = None
        self._read = b""

    def grade(self, row: dict[str, Any]) -> Reply:
        """The reply to one {id, completion, gold}."""
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
        """The next line of the process, read; None when it does not come in time, or never."""
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
        """End the process and everything it started."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None


def run_grader(python: Path, judge: str, rows: Iterable[dict[str, Any]], limit: float = 20.0) -> Iterator[Reply]:
    """The reply of one grader to every row, in order."""
    process = GraderProcess(python, judge, limit)
    try:
        for row in rows:
            yield process.grade(row)
    finally:
        process.close()


def run_rloop(rows: Iterable[dict[str, Any]]) -> Iterator[Reply]:
    """The verdicts of `rloop verify`, the command as a user runs it."""
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
