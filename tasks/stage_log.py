"""Forward what a stage's process prints to the log of its task run, at a readable rate and as printable lines."""

import contextlib
import logging
import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from rloop_core.printable import printable_line

LINES_A_MINUTE = 20
"""Most warnings, and most other lines, that are forwarded in a minute."""
_TAIL = 5
_MOST_BEHIND = 4 << 20
_CHUNK = 1 << 20
_LONGEST = 1 << 16
_WARNING = re.compile(r"warning|error|exception|traceback|critical|fatal|killed|out of memory", re.IGNORECASE)
_NOISE = re.compile(
    r"^\{'[\w/]+': .*\}?$"  # trainers print the metrics of each step; the stage reports them as progress
    r"|\b(Future|PendingDeprecation|Deprecation)Warning\b|^\s*warnings\.warn\("  # for the maintainers of rloop
)


class StageLog:
    """Forwards a growing file line by line.

    Lines beyond `LINES_A_MINUTE` are counted; the count is logged, and at the end the last of them.

    Args:
        say: Called with a logging level and a line.
        clock: A monotonic clock, in seconds.
    """

    def __init__(self, say: Callable[[int, str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._say = say
        self._clock = clock
        self._stream: BinaryIO | None = None
        self._path = Path()
        self._rest = b""
        self._bar = b""
        self._minute = clock()
        self._room = {True: LINES_A_MINUTE, False: LINES_A_MINUTE}  # left in this minute, of warnings and others
        self._left_out = 0
        self._last: deque[str] = deque(maxlen=_TAIL)
        self._lock = threading.RLock()  # opened in the stage's thread, read in the publisher's

    def follow(self, path: Path) -> None:
        """Forward what is written to a file from now on; ignore a file that this machine does not have."""
        with self._lock, contextlib.suppress(OSError):
            self.close()
            self._path = path
            # Opened at once: the file is deleted with its folder as soon as the stage is done.
            self._stream = open(path, "a+b")  # noqa: SIM115 - lives as long as the stage
            self._stream.seek(0, os.SEEK_END)

    def forward(self) -> None:
        """Forward what was written since the last call."""
        with self._lock:
            self._read()

    def close(self) -> None:
        """Forward the rest, and the last of the lines that were left out."""
        with self._lock:
            if self._stream is None:
                return
            self._read()
            self._forward_line(_last_overwrite(self._rest) or self._bar)
            self._log_left_out(self._left_out - len(self._last))
            for line in self._last:
                self._say(logging.INFO, line)
            self._last.clear()
            self._stream.close()
            self._stream, self._rest, self._bar, self._left_out = None, b"", b"", 0

    def _read(self) -> None:
        if self._clock() - self._minute >= 60:
            self._minute = self._clock()
            self._room = {True: LINES_A_MINUTE, False: LINES_A_MINUTE}
            self._log_left_out(self._left_out)
            self._last.clear()
            self._forward_line(self._bar)
            self._bar = b""
        if self._stream is None:
            return
        self._catch_up(self._stream)
        while chunk := self._stream.read(_CHUNK):
            *lines, self._rest = (self._rest + chunk).split(b"\n")
            for line in lines:
                self._forward_line(_last_overwrite(line) or self._bar)
                self._bar = b""
            if b"\r" in self._rest:
                self._bar = _last_overwrite(self._rest)
                self._rest = self._rest[self._rest.rindex(b"\r") :]
            self._rest = self._rest[:_LONGEST]

    def _catch_up(self, stream: BinaryIO) -> None:
        """Skip to the end of a file that grows faster than it is read."""
        end, position = os.fstat(stream.fileno()).st_size, stream.tell()
        if end - position > _MOST_BEHIND:
            stream.seek(end - _CHUNK)
            self._rest = b""
            megabytes = (end - _CHUNK - position) / 1e6
            self._say(logging.INFO, f"... {megabytes:.0f} MB of output left out, see {self._path}")

    def _forward_line(self, line: bytes) -> None:
        text = printable_line(line[:_LONGEST].decode(errors="replace"))
        if not text or _NOISE.search(text):
            return
        warning = bool(_WARNING.search(text))
        if self._room[warning]:
            self._room[warning] -= 1
            self._say(logging.WARNING if warning else logging.INFO, text)
        else:
            self._left_out += 1
            self._last.append(text)

    def _log_left_out(self, count: int) -> None:
        if count > 0:
            self._say(logging.INFO, f"... {count:,} lines left out, see {self._path}")
            self._left_out = 0


def _last_overwrite(line: bytes) -> bytes:
    """Return the text after the last carriage return that has any: the last state of a progress bar."""
    return next((part for part in reversed(line.split(b"\r")) if part.strip()), b"")
