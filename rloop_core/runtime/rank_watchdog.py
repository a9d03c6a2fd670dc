"""Heartbeat files of a stage's ranks, from which to tell which rank stalled and where."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

_HEARTBEAT_SECONDS = 1.0
_SILENT_SECONDS = 5.0
_WAITING_PATH = "torch/distributed/"
"""The innermost frames of a rank that waits for the others are of files below this folder."""
_OWN_PATH = "rloop_core/"


@contextlib.contextmanager
def heartbeat(folder: Path, rank: int) -> Iterator[None]:
    """Write every second to `<folder>/rank-NN.json` where the main thread is, while the block runs.

    The file is written in place: network file systems notice a changed file sooner than a replaced one. It is removed
    at the end of the block; a rank that dies leaves it.
    """
    main = threading.main_thread().ident or 0
    path, stop = folder / f"rank-{rank:02d}.json", threading.Event()

    def write() -> None:
        with contextlib.suppress(OSError):  # a disk that is full for a moment delays a heartbeat
            path.write_text(json.dumps({"rank": rank, **_position(sys._current_frames().get(main))}))

    def write_until_stopped() -> None:
        while not stop.wait(_HEARTBEAT_SECONDS):
            write()

    thread = threading.Thread(target=write_until_stopped, name=f"heartbeat-{path.stem}", daemon=True)
    write()  # at once, so that a rank that stops in its first second is known
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def stalled_ranks(folder: Path) -> str:
    """Say which ranks held up the others, and where they were; "" if that cannot be told.

    Only times of the file system are compared, so the machines' clocks do not matter.
    """
    ranks: list[tuple[float, dict[str, Any]]] = []
    errors: list[float] = []
    for path in sorted(folder.glob("rank-*.json")):
        with contextlib.suppress(OSError, ValueError):
            ranks.append((path.stat().st_mtime, json.loads(path.read_text())))
    with contextlib.suppress(OSError):
        errors = [path.stat().st_mtime for path in folder.glob("error-*.json")]
    if not ranks:
        return ""
    now = max([time for time, _ in ranks] + errors)
    silent = [(now - time, content) for time, content in ranks if now - time > _SILENT_SECONDS]
    if silent:
        return ", ".join(
            f"rank {content['rank']} has shown no sign of life for {seconds:.0f} s (stopped, swapped out, or stuck in "
            f"native code), last {content['where']}"
            for seconds, content in silent
        )
    busy = [content for _, content in ranks if not content["waits"]]
    if len(busy) == len(ranks):
        return ""
    return ", ".join(f"rank {each['rank']} was {each['where']}, while the others waited for it" for each in busy)


def _position(frame: FrameType | None) -> dict[str, Any]:
    """Return the innermost function, the innermost one of this project, and whether the thread waits for others."""
    inner, own, waits = "", "", False
    while frame is not None and not own:
        path, name = frame.f_code.co_filename, frame.f_code.co_name
        inner = inner or f"in {name} of {Path(path).name}"
        waits = waits or _WAITING_PATH in path
        own = f"{name} of {path[path.rindex(_OWN_PATH) :]}" if _OWN_PATH in path else ""
        frame = frame.f_back
    return {"where": f"{inner}, below {own}" if own and own not in inner else inner or "nowhere", "waits": waits}
