"""Processes that outlive the one they belong to, found by a mark that all of its descendants inherit.

A supervisor ends its stage's tree, and the kernel hands it every orphan; so a stray is left only when a supervisor
itself was killed. The mark is a variable in the environment, which Linux shows of every process: it names its owner,
the process that runs stages. What carries the mark of an owner that is gone, or is no longer below one that lives, has
no business here. A process that cleared its environment *and* lost its supervisor is not found.

No library does it: psutil sees trees, and an orphan is in none; a service manager or a container's end would do it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from rloop_core.runtime.lifetime import kill, processes_below

_MARK = "RLOOP_OWNER"
_PROC = Path("/proc")
_PAUSE_SECONDS = 0.1
_GONE_SECONDS = 2.0
_WATCH_SECONDS = 0.5

STRAY_SECONDS = 6.0
"""A living supervisor needs no longer to end its stage's tree."""


def mark_descendants() -> None:
    """From now on, every process started below this one names it as its owner."""
    os.environ[_MARK] = f"{os.getpid()}-{started(os.getpid())}-{_namespace()}"


def end_strays(patience: float = 0.0) -> int:
    """SIGKILL every stray of this user, whoever owned it; returns how many there were.

    Args:
        patience: Seconds in which they may end by themselves, as those below a living supervisor do.
    """
    if sys.platform != "linux":
        return 0
    deadline = time.monotonic() + patience
    while (found := _strays()) and time.monotonic() < deadline:
        time.sleep(_PAUSE_SECONDS)
    for _ in range(20):  # one that is killed while it forks leaves another
        for process in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)
        time.sleep(_PAUSE_SECONDS if found else 0.0)
        if not (left := _strays()):
            break
        found += [process for process in left if process not in found]
    return len(found)


def end_strays_of_the_gone(process: int) -> None:
    """Once this process's owner has ended, end what else it left; in a fork of `process`, nothing.

    Those below living supervisors get the time that these give them.
    """
    deadline = time.monotonic() + _GONE_SECONDS
    while os.getpid() == process and time.monotonic() < deadline:
        if owner_is_gone():
            end_strays(STRAY_SECONDS)
            return
        time.sleep(_PAUSE_SECONDS)


def unmarked_environment() -> dict[str, str]:
    """This process's environment for a program that is to outlive it: such a one is nobody's stray."""
    return {name: value for name, value in os.environ.items() if name != _MARK}


def watch_descendants() -> subprocess.Popen[bytes]:
    """Start a process that ends all below this one once this one ends, even by kill -9; kill it once it has served.

    For programs that overlook the end of their starter and overwrite the environment that their mark is in: vLLM's.
    """
    watcher = subprocess.Popen(
        [sys.executable, "-m", "rloop_core.runtime.orphans", str(os.getpid())],
        env=unmarked_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    if watcher.stdout:
        with watcher.stdout as stdout:
            stdout.readline()  # it watches
    return watcher


def owner_is_gone() -> bool:
    """Whether the process that this one works for has ended; False where nothing is marked."""
    owner = os.environ.get(_MARK)
    return owner is not None and not _lives(owner)


def started(process: int) -> int | None:
    """Start of a process in clock ticks since boot, which tells it from a later one of its id; None when it ended."""
    fields = _stat(process)
    return None if fields is None or fields[0] in "ZX" else int(fields[19])


def _strays() -> list[int]:
    me, here = os.getpid(), f"-{_namespace()}"
    lives: dict[str, bool] = {}
    found = []
    for folder in _PROC.iterdir():
        if not folder.name.isdigit() or int(folder.name) == me:
            continue
        process = int(folder.name)
        owner = _owner(folder)
        if owner is None or not owner.endswith(here) or started(process) is None:
            continue
        if owner not in lives:
            lives[owner] = _lives(owner)
        if not lives[owner] or not _is_below(process, int(owner.partition("-")[0])):
            found.append(process)
    return found


def _owner(folder: Path) -> str | None:
    """The owner that a process names; None for those of other users, too."""
    try:
        environment = (folder / "environ").read_bytes()
    except OSError:
        return None
    for entry in environment.split(b"\0"):
        name, _, value = entry.partition(b"=")
        if name == _MARK.encode():
            return value.decode(errors="replace")
    return None


def _lives(owner: str) -> bool:
    process, start, _ = owner.split("-", 2)
    return str(started(int(process))) == start


def _namespace() -> str:
    """Where process ids mean the same: a container's are not its host's, which sees its processes all the same."""
    try:
        return str((_PROC / "self/ns/pid").readlink())
    except OSError:
        return "here"


def _is_below(process: int, ancestor: int) -> bool:
    while process > 1:
        if process == ancestor:
            return True
        fields = _stat(process)
        if fields is None:
            return True  # it ended meanwhile
        process = int(fields[1])
    return False


def _stat(process: int) -> list[str] | None:
    """What /proc says of a process, from its state on."""
    try:
        return (_PROC / str(process) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def _watch(process: int) -> None:
    start = started(process)
    print("watches", flush=True)
    below = {one for one in processes_below(process) if one.pid != os.getpid()}
    while start is not None and started(process) == start:
        time.sleep(_WATCH_SECONDS)
        below = {one for one in [*below, *processes_below(process)] if one.is_running() and one.pid != os.getpid()}
    kill({*below, *(further for one in below for further in processes_below(one.pid))})


if __name__ == "__main__":
    _watch(int(sys.argv[1]))
