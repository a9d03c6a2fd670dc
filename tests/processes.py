"""Which processes there are below one, read from /proc, and whether they have ended."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

import psutil


def descendants(pid: int) -> set[int]:
    """Process ids of all that live below this one, zombies left out."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if fields[0] != "Z":
                parents[int(entry.name)] = int(fields[1])
    found: set[int] = set()
    while grown := {child for child, parent in parents.items() if parent in found | {pid}} - found:
        found |= grown
    return found


def still_running(processes: Iterable[psutil.Process], timeout: float = 120.0) -> list[str]:
    """Process id and command of each that has not ended by the last resort of a busy machine.

    A zombie has ended: in a container whose first process waits for nobody, orphans stay zombies for ever.
    """
    alive, deadline = list(processes), time.monotonic() + timeout
    while (left := [said for one in alive if (said := _said(one))]) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


def _said(process: psutil.Process) -> str | None:
    """What a process is, or None of one that has ended."""
    try:
        if not process.is_running() or process.status() == psutil.STATUS_ZOMBIE:
            return None
        return f"{process.pid}: {process.cmdline()}"
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return None
