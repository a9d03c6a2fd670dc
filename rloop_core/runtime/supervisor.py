"""Supervise a stage: a process between run and stage ends the stage's whole process tree, whatever happens to the run.

The stage computes in a child of the supervisor. When the child ends, when the run asks, or when the run itself is gone
(its end of the pipe closes, even by kill -9), every descendant is ended, also those in sessions of their own.

No library does this: multiprocessing ends the children it knows of, and torchelastic its ranks while its agent lives;
cgroups need rights that a run seldom has.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from pathlib import Path

from rloop_core.runtime.lifetime import adopt_orphans, die_with_parent, processes_below

GRACE_SECONDS = 3.0
_POLL_SECONDS = 0.05


def supervise(work: Callable[[], int], control: Connection, log: Path) -> None:
    """Run `work` in a child process, end its tree, and exit with the child's exit code.

    Args:
        work: Called in the child; returns its exit code.
        control: The stage must stop when the run closes its end, or sends anything.
        log: File that takes the child's stdout and stderr.
    """
    with contextlib.suppress(OSError):
        os.setsid()
    adopt_orphans()
    supervisor = os.getpid()
    child = os.fork()
    if child == 0:
        die_with_parent(supervisor)
        control.close()
        _become_worker(work, log)
    code = _watch(child, control)
    end_descendants()
    os._exit(code)


def _become_worker(work: Callable[[], int], log: Path) -> None:
    code = 1
    try:
        with open(log, "ab", buffering=0) as stream:
            os.dup2(stream.fileno(), 1)
            os.dup2(stream.fileno(), 2)
        sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115 - lives as long as the process
        sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        code = work()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _watch(child: int, control: Connection) -> int:
    """Wait for the child, and end it if the run asks; return its exit code, or 128 + the signal that ended it."""
    deadline: float | None = None
    child_ended: list[int] = []
    with contextlib.suppress(AttributeError, OSError):  # without it, the end is noticed a moment later
        child_ended.append(os.pidfd_open(child))
    while True:
        status = _reap(child)
        if status is not None:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code
        if deadline is None and control in wait([control, *child_ended], _POLL_SECONDS):
            deadline = time.monotonic() + GRACE_SECONDS
            _signal_descendants(signal.SIGTERM)
        elif deadline is not None:
            time.sleep(_POLL_SECONDS)
            if time.monotonic() > deadline:
                _signal_descendants(signal.SIGKILL)


def end_descendants() -> None:
    """SIGKILL every descendant of this process until none is left, and reap them."""
    for _ in range(100):
        if not _signal_descendants(signal.SIGKILL):
            return
        _reap(0)
        time.sleep(0.02)


def _reap(child: int) -> int | None:
    """Reap every child that has ended, adopted orphans included; return the wait status of `child` if it has."""
    with contextlib.suppress(ChildProcessError):
        while True:
            process, status = os.waitpid(-1, os.WNOHANG)
            if process == child:
                return status
            if process == 0:
                break
    return None


def _signal_descendants(number: int) -> int:
    """Send a signal to every living descendant; return their number."""
    living = processes_below(os.getpid())
    for process in living:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)
    return len(living)
