"""A command with a limit of time, whose whole process tree ends with it."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rloop_core.runtime.lifetime import adopt_orphans
from rloop_core.runtime.supervisor import end_descendants

_POLL_SECONDS = 0.1
_TAIL_LINES = 2


def run_limited(command: Sequence[str], seconds: float, log: Path) -> tuple[float, str | None]:
    """Run a command, its output in a file; every process below this one is ended afterwards, whatever session it is in.

    Args:
        command: Program and arguments.
        seconds: It may take so long.
        log: File for stdout and stderr.

    Returns:
        Seconds that it took, and why it did not end well: None, its exit code, its signal, or the limit.
    """
    adopt_orphans()
    log.parent.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    trouble: str | None = None
    try:
        with open(log, "wb") as output:
            child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )
        while child.poll() is None:
            if time.monotonic() - began > seconds:
                trouble = f"ran longer than its limit of {seconds:g} s and was ended"
                break
            time.sleep(_POLL_SECONDS)
    finally:
        end_descendants()
    if trouble is None and child.returncode:
        trouble = f"{_ending(child.returncode)}; {log} ends: {_tail(log)}"
    return time.monotonic() - began, trouble


def end_on_signals() -> None:
    """Let SIGTERM end this process as Ctrl-C does: with everything below it."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))


def _ending(code: int) -> str:
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def _tail(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()[-_TAIL_LINES:]
    return " | ".join(line.strip()[:160] for line in lines) or "nothing"
