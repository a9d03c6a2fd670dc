"""The lifetime of processes: find what runs below one, leave none behind, tell one from a later one of its id, end one
that takes too much.

Linux's parent-death signal and child subreaper do nothing on other systems.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import resource
import signal
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import psutil

T = TypeVar("T")

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


def start_time(process: int) -> float | None:
    """Return a process's start, which tells it from a later one with the same id; None once it has ended.

    On Linux in clock ticks since boot: psutil's time of day would move whenever the clock is set.
    """
    if sys.platform == "linux":
        fields = process_fields(process)
        return None if fields is None or fields[0] in "ZX" else int(fields[19])
    import psutil

    try:
        found = psutil.Process(process)
        return None if found.status() == psutil.STATUS_ZOMBIE else float(found.create_time())
    except (psutil.Error, ValueError):
        return None


def process_fields(process: int) -> list[str] | None:
    """Return the fields of Linux's /proc/<process>/stat from the state on; None if there is no such process."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


class TooMuch(RuntimeError):  # noqa: N818
    """A function takes more time or memory than it may."""


def run_limited(function: Callable[[], T], seconds: int, memory: int) -> T:
    """Return what a function returns, called in a fork of this process that ends when it takes too much.

    A time limit inside the process would have to wait for the C function that runs, such as a power of large numbers.

    Args:
        function: Returns something that can be pickled.
        seconds: Most time that it computes, all threads together: no slow machine ends it.
        memory: Most bytes beyond what this process has; on Linux alone.

    Raises:
        TooMuch: It takes more.
        Exception: The function's own error.
    """
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool
    from multiprocessing import get_context

    with ProcessPoolExecutor(1, get_context("fork"), _begin, (function, os.getpid(), seconds, memory)) as pool:
        try:
            return pool.submit(_call).result()  # type: ignore[no-any-return]
        except (BrokenProcessPool, MemoryError) as error:
            most = f"{seconds} s of computing or {memory / 2**30:.1f} GiB of memory"
            raise TooMuch(f"takes more than {most}, or crashes") from error


_function: Callable[[], Any]


def _begin(function: Callable[[], Any], parent: int, seconds: int, memory: int) -> None:
    global _function
    _function = function
    die_with_parent(parent)
    _limit(seconds, memory)


def _call() -> Any:
    return _function()


def _limit(seconds: int, memory: int) -> None:
    taken = 0
    with contextlib.suppress(OSError):
        found = re.search(r"^VmData:\s*(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
        taken = int(found[1]) * 1024 if found else 0
    wanted = {resource.RLIMIT_CPU: seconds, resource.RLIMIT_DATA: taken + memory, resource.RLIMIT_CORE: 0}
    for limit, most in wanted.items():
        hard = resource.getrlimit(limit)[1]
        resource.setrlimit(limit, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)
