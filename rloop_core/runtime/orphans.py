"""Find and end orphans: processes whose owner, the process that ran their stage, is gone.

A supervisor ends its stage's process tree, so an orphan is left only when a supervisor itself was killed. All
descendants of an owner inherit a mark that names it: an environment variable, which Linux shows of every process. A
marked process is an orphan if its owner is gone, or if it is no longer below the owner. A process that cleared its
environment *and* lost its supervisor is not found.

No library does this: psutil walks trees, and an orphan is in none. A service manager or a container would.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from rloop_core.runtime.lifetime import kill, process_fields, processes_below, start_time

_MARK = "RLOOP_OWNER"
_PROC = Path("/proc")
_PAUSE_SECONDS = 0.1
_OWNER_EXIT_SECONDS = 2.0
_WATCH_SECONDS = 0.5

ORPHAN_SECONDS = 6.0
"""A living supervisor ends its stage's process tree in less time."""


def mark_descendants() -> None:
    """Name this process as the owner of every process started below it from now on."""
    os.environ[_MARK] = f"{os.getpid()}-{start_time(os.getpid())}-{_namespace()}"


def unmarked_environment() -> dict[str, str]:
    """Return this process's environment for a program that may outlive it without being an orphan."""
    return {name: value for name, value in os.environ.items() if name != _MARK}


def owner_is_gone() -> bool:
    """Return True if this process's owner has ended; False without a mark."""
    owner = os.environ.get(_MARK)
    return owner is not None and not _is_alive(owner)


def end_orphans(patience: float = 0.0) -> int:
    """SIGKILL this user's orphans of any owner; return their number.

    Args:
        patience: Seconds in which they may end by themselves, as those below a living supervisor do.
    """
    if sys.platform != "linux":
        return 0
    deadline = time.monotonic() + patience
    while (orphans := _orphans()) and time.monotonic() < deadline:
        time.sleep(_PAUSE_SECONDS)
    for _ in range(20):  # one that is killed while it forks leaves another
        for process in orphans:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)
        time.sleep(_PAUSE_SECONDS if orphans else 0.0)
        if not (left := _orphans()):
            break
        orphans += [process for process in left if process not in orphans]
    return len(orphans)


def end_orphans_of_dead_owner(process: int) -> None:
    """Wait a moment for this process's owner to end, then end the orphans; do nothing in a fork of `process`.

    Those below a living supervisor get the time that it needs to end them.
    """
    deadline = time.monotonic() + _OWNER_EXIT_SECONDS
    while os.getpid() == process and time.monotonic() < deadline:
        if owner_is_gone():
            end_orphans(ORPHAN_SECONDS)
            return
        time.sleep(_PAUSE_SECONDS)


def watch_descendants() -> subprocess.Popen[bytes]:
    """Start a process that ends all below this one when this one ends, even by kill -9; kill it when not needed.

    For programs that ignore the end of their parent and overwrite the environment that holds the mark, as vLLM does.
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


def _watch(process: int) -> None:
    start = start_time(process)
    print("watches", flush=True)
    below = {child for child in processes_below(process) if child.pid != os.getpid()}
    while start is not None and start_time(process) == start:
        time.sleep(_WATCH_SECONDS)
        seen = [*below, *processes_below(process)]
        below = {child for child in seen if child.is_running() and child.pid != os.getpid()}
    kill({*below, *(further for child in below for further in processes_below(child.pid))})


def _orphans() -> list[int]:
    me, namespace = os.getpid(), f"-{_namespace()}"
    alive: dict[str, bool] = {}
    orphans = []
    for folder in _PROC.iterdir():
        if not folder.name.isdigit() or int(folder.name) == me:
            continue
        process = int(folder.name)
        owner = _owner(folder)
        if owner is None or not owner.endswith(namespace) or start_time(process) is None:
            continue
        if owner not in alive:
            alive[owner] = _is_alive(owner)
        if not alive[owner] or not _is_below(process, int(owner.partition("-")[0])):
            orphans.append(process)
    return orphans


def _owner(folder: Path) -> str | None:
    """Return the owner that a process names; None without a mark, and for processes of other users."""
    try:
        environment = (folder / "environ").read_bytes()
    except OSError:
        return None
    for entry in environment.split(b"\0"):
        name, _, value = entry.partition(b"=")
        if name == _MARK.encode():
            return value.decode(errors="replace")
    return None


def _is_alive(owner: str) -> bool:
    process, start, _ = owner.split("-", 2)
    return str(start_time(int(process))) == start


def _namespace() -> str:
    """Return the PID namespace: a host sees the processes of its containers, whose marks hold other process ids."""
    try:
        return str((_PROC / "self/ns/pid").readlink())
    except OSError:
        return "here"


def _is_below(process: int, ancestor: int) -> bool:
    while process > 1:
        if process == ancestor:
            return True
        fields = process_fields(process)
        if fields is None:
            return True  # it ended meanwhile
        process = int(fields[1])
    return False


if __name__ == "__main__":
    _watch(int(sys.argv[1]))
