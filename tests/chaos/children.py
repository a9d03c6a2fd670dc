"""The processes below the one that plays: who lives, who has ended and with what."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress

import psutil

END_SECONDS = 60.0
"""What a process may take to end that nobody waits for any longer."""


class WrongError(Exception):
    """What is wrong with a run, in one line."""


def ended(pid: int) -> int | None:
    """The exit code of a child that has ended; minus the signal for one that was killed."""
    found, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if found else None


def end_of(pid: int, is_silent: Callable[[], bool]) -> int:
    """Wait for a child.

    Raises:
        WrongError: It is silent, and has not ended.
    """
    while (code := ended(pid)) is None:
        if is_silent():
            raise WrongError("a process did not end")
        time.sleep(0.005)
    return code


def living(keep: int | None) -> list[int]:
    """Processes below this one, but for one of our own."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if process.pid != keep and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
    return found


def wait_until_alone(keep: int | None) -> None:
    """Wait for everything that a start has left.

    Raises:
        WrongError: Somebody stays.
    """
    deadline = time.monotonic() + END_SECONDS
    while left := living(keep):
        reap()
        if time.monotonic() > deadline:
            commands = [" ".join(psutil.Process(pid).cmdline())[:80] for pid in left if psutil.pid_exists(pid)]
            raise WrongError(f"left processes behind: {commands}")
        time.sleep(0.05)


def kill_all(keep: int | None) -> None:
    """End everything below this process."""
    for pid in living(keep):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    reap()


def reap() -> None:
    """Take in the orphans that ended; they come to us because we asked for them."""
    for process in psutil.Process().children():
        with suppress(psutil.Error, ChildProcessError):
            if process.status() == psutil.STATUS_ZOMBIE:
                os.waitpid(process.pid, os.WNOHANG)


def below(flow: int) -> dict[str, list[int]]:
    """A run's processes by what they are."""
    found: dict[str, list[int]] = {"flow": [flow], "fork server": [], "supervisor": [], "stage": []}
    with suppress(psutil.Error):
        ours = psutil.Process().cmdline()
        for server in (one for one in psutil.Process(flow).children() if one.cmdline() == ours):
            found["fork server"].append(server.pid)
            for supervisor in server.children():
                found["supervisor"].append(supervisor.pid)
                found["stage"] += [one.pid for one in supervisor.children()]
    return found
