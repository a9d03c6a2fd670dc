"""Ways of leaving no process behind; Linux's own two do nothing elsewhere, where closed pipes have to suffice."""

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
    """Have the kernel kill this process when the parent *thread* that started it ends, even by kill -9.

    Args:
        parent: Process id of that parent; ends this process at once when it is gone already. Unknown, it is taken for
            gone where an init has adopted this process; in a container the parent itself may be process 1.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if (os.getppid() == 1) if parent is None else (os.getppid() != parent):
        os._exit(1)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends, so that none can slip away."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def processes_below(process: int) -> list[psutil.Process]:
    """All descendants of a process, but for `multiprocessing`'s resource trackers.

    Those, deaf to SIGTERM, tidy up shared memory once their starter has ended, and then end by themselves.
    """
    import psutil

    found = []
    with contextlib.suppress(psutil.Error):
        for child in psutil.Process(process).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if not any("multiprocessing.resource_tracker" in word for word in child.cmdline()):
                    found.append(child)
    return found


def kill(processes: Iterable[psutil.Process]) -> None:
    """SIGKILL those that still run; of an id that is somebody else's by now, nothing."""
    import psutil

    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.kill()


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)
