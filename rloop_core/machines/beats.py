"""Signs of life in a folder that several machines see: small files, written again and again.

Nobody compares clocks: who is alive is whose counter moves while one watches. The files are written in place, for
network file systems notice a file that changed sooner than one that was put in its place; so a reader may find half of
one, and then goes by what it read before.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

BEAT_SECONDS = 1.0


class Beating:
    """Keeps a file alive; a context manager, at whose end the file is removed.

    Args:
        path: The file.
        see: Asked at each beat for what else there is to say.
        **content: What else it says, as JSON values.
    """

    def __init__(self, path: Path, see: Callable[[], dict[str, Any]] = dict, **content: Any) -> None:
        self._path = path
        self._see = see
        self._content = content
        self._beat = 0
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._go_on, name=f"beat-{path.stem}", daemon=True)

    def __enter__(self) -> Beating:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._write()
        self._thread.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._stop.set()
        self._thread.join()
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)

    def say(self, **changes: Any) -> None:
        """Change what the file says, at once."""
        with self._lock:
            self._content = {**self._content, **changes}
        self._write()

    def _go_on(self) -> None:
        while not self._stop.wait(BEAT_SECONDS):
            self._write()

    def _write(self) -> None:
        with self._lock, contextlib.suppress(OSError):  # a disk that is full for a moment makes a beat late
            self._beat += 1
            self._path.write_text(json.dumps({**self._content, **self._see(), "beat": self._beat}))


class Watching:
    """Reads such files, and knows how long each has been silent.

    Args:
        folder: Where they are.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[str, dict[str, Any]] = {}
        self._changed: dict[str, float] = {}
        self._moved: set[str] = set()

    def look(self) -> None:
        """Read every file as it is now."""
        there = set()
        # Listed, not opened by name: that a name does not exist is what network file systems remember longest.
        with contextlib.suppress(OSError):
            there = {path.name for path in self._folder.iterdir() if path.suffix == ".json"}
        for name in [*self._read.keys() - there]:
            del self._read[name]
            self._moved.discard(name)
        for name in there:
            with contextlib.suppress(OSError, ValueError):
                content = json.loads((self._folder / name).read_text())
                if not isinstance(content, dict) or content == self._read.get(name):
                    continue
                if name in self._read:
                    self._moved.add(name)
                self._read[name] = content
                self._changed[name] = time.monotonic()

    def content(self, name: str) -> dict[str, Any] | None:
        """What a file said at the last look; None when it is gone."""
        return self._read.get(name)

    def names(self, prefix: str) -> list[str]:
        """Files that were there at the last look, in order."""
        return sorted(name for name in self._read if name.startswith(prefix))

    def silent_seconds(self, name: str) -> float:
        """How long ago it was last seen to change, or first seen; infinite when it is gone."""
        return time.monotonic() - self._changed[name] if name in self._read else float("inf")

    def lives(self, name: str, silence: float) -> bool:
        """Whether it was seen to change, and not too long ago: a file that lies there may be a dead one's."""
        return name in self._moved and self.silent_seconds(name) < silence
