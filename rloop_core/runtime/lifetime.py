"""Leave no process behind: Linux's parent-death signal and child subreaper, which do nothing on other systems."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psutil

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def die_with_parent(parent: int | None = None) -> None:
    """Have the kernel kill this process when the *thread* that started it ends, even by kill -9.

    Args:
        parent: Process id of the parent; if it is gone already, this process exits at once. Without it, process 1 as
            the parent means that the parent is gone; pass it where the parent may be process 1, as in a container.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if (os.getppid() == 1) if parent is None else (os.getppid() != parent):
        os._exit(1)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends, so that none escapes."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def processes_below(process: int) -> list[psutil.Process]:
    """Return all descendants of a process except `multiprocessing`'s resource trackers.

    Those ignore SIGTERM, free shared memory once their parent has ended, and then end by themselves.
    """
    import psutil

    below = []
    with contextlib.suppress(psutil.Error):
        for child in psutil.Process(process).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if not any("multiprocessing.resource_tracker" in word for word in child.cmdline()):
                    below.append(child)
    return below


def kill(processes: Iterable[psutil.Process]) -> None:
    """SIGKILL the processes that still run; psutil notices an id that another process has by now."""
    import psutil

    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.kill()


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)
