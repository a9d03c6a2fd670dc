"""Which of several ranks stands still, and where: each shows every second where its main thread is."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

_BEAT_SECONDS = 1.0
_SILENT_SECONDS = 5.0
_WAITING = ("torch/distributed/",)
"""Where the innermost frames are of a rank that waits for the others."""
_OWN = "rloop_core/"


@contextlib.contextmanager
def pulse(folder: Path, rank: int) -> Iterator[None]:
    """While the block runs, a file of the folder shows where this rank's main thread is; a rank that dies leaves it.

    It is written in place: network file systems notice a file that changed sooner than one that was put in its place.
    """
    main = threading.main_thread().ident or 0
    path, over = folder / f"rank-{rank:02d}.json", threading.Event()

    def beat() -> None:
        with contextlib.suppress(OSError):  # a disk that is full for a moment makes a beat late
            path.write_text(json.dumps({"rank": rank, **_where(sys._current_frames().get(main))}))

    def go_on() -> None:
        while not over.wait(_BEAT_SECONDS):
            beat()

    beating = threading.Thread(target=go_on, name=f"beat-{path.stem}", daemon=True)
    beat()  # at once, so that a rank that stops in its first second is known
    beating.start()
    try:
        yield
    finally:
        over.set()
        beating.join()
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def who_stands_still(work: Path) -> str:
    """In words, which rank held up the others, and where it was; "" where that cannot be told.

    Times are compared as the file system gave them, so that no clock but its own matters.
    """
    ranks, times = [], []
    folder = work / "ranks"
    for path in sorted(folder.glob("rank-*.json")):
        with contextlib.suppress(OSError, ValueError):
            ranks.append((path.stat().st_mtime, json.loads(path.read_text())))
    with contextlib.suppress(OSError):
        times = [path.stat().st_mtime for path in folder.glob("error-*.json")]
    if not ranks:
        return ""
    now = max([time for time, _ in ranks] + times)
    silent = [(now - time, said) for time, said in ranks if now - time > _SILENT_SECONDS]
    if silent:
        return ", ".join(
            f"rank {said['rank']} has shown no sign of life for {seconds:.0f} s (stopped, swapped out, or stuck in "
            f"native code), last {said['where']}"
            for seconds, said in silent
        )
    busy = [said for _, said in ranks if not said["waits"]]
    if busy and len(busy) < len(ranks):
        return ", ".join(f"rank {said['rank']} was {said['where']}, while the others waited for it" for said in busy)
    return ""


def _where(frame: FrameType | None) -> dict[str, Any]:
    """Innermost function of all, innermost one of ours, and whether it is one in which a rank waits for others."""
    inner, own, waits = "", "", False
    while frame is not None and not own:
        path, name = frame.f_code.co_filename, frame.f_code.co_name
        inner = inner or f"in {name} of {Path(path).name}"
        waits = waits or any(part in path for part in _WAITING)
        own = f"{name} of {path[path.rindex(_OWN) :]}" if _OWN in path else ""
        frame = frame.f_back
    return {"where": f"{inner}, below {own}" if own and own not in inner else inner or "nowhere", "waits": waits}
