"""What a stage's process prints, brought into the log of its task run: at a readable rate, and fit to be read."""

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
"""Of warnings and of other lines, each."""
_TAIL = 5
_MOST_BEHIND = 4 << 20
_STEP = 1 << 20
_LONGEST = 1 << 16
_LOUD = re.compile(r"warning|error|exception|traceback|critical|fatal|killed|out of memory", re.IGNORECASE)
_FOR_NOBODY = re.compile(
    r"^\{'[\w/]+': .*\}?$"  # what trainers print of each step; the stage tells it as progress
    r"|\b(Future|PendingDeprecation|Deprecation)Warning\b|^\s*warnings\.warn\("  # for who maintains rloop
)


class StageLog:
    """A growing file, forwarded line by line.

    A minute has room for so many lines and so many warnings; of the others the number is said, and at the end the last.

    Args:
        say: Takes a logging level and a line.
        clock: Seconds that never go back.
    """

    def __init__(self, say: Callable[[int, str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._say = say
        self._clock = clock
        self._stream: BinaryIO | None = None
        self._path = Path()
        self._rest = b""
        self._bar = b""
        self._minute = clock()
        self._room = {True: LINES_A_MINUTE, False: LINES_A_MINUTE}
        self._left_out = 0
        self._last: deque[str] = deque(maxlen=_TAIL)
        self._lock = threading.RLock()  # begun in the stage's thread, read in the desk's

    def follow(self, path: Path) -> None:
        """Forward what is written to a file from now on; one that is not there, as on another machine, is let be."""
        with self._lock, contextlib.suppress(OSError):
            self.close()
            self._path = path
            # Opened at once: the file is deleted with its folder as soon as the stage is done.
            self._stream = open(path, "a+b")  # noqa: SIM115 - lives as long as the stage
            self._stream.seek(0, os.SEEK_END)

    def tick(self) -> None:
        """Forward what has been written since."""
        with self._lock:
            self._read()

    def close(self) -> None:
        """Forward the rest, with the last of the lines that were left out."""
        with self._lock:
            if self._stream is None:
                return
            self._read()
            self._forward(_without_bar(self._rest) or self._bar)
            self._tell_left_out(self._left_out - len(self._last))
            for line in self._last:
                self._say(logging.INFO, line)
            self._last.clear()
            self._stream.close()
            self._stream, self._rest, self._bar, self._left_out = None, b"", b"", 0

    def _read(self) -> None:
        if self._clock() - self._minute >= 60:
            self._minute = self._clock()
            self._room = {True: LINES_A_MINUTE, False: LINES_A_MINUTE}
            self._tell_left_out(self._left_out)
            self._last.clear()
            self._forward(self._bar)
            self._bar = b""
        if self._stream is None:
            return
        self._catch_up(self._stream)
        while chunk := self._stream.read(_STEP):
            *lines, self._rest = (self._rest + chunk).split(b"\n")
            for line in lines:
                self._forward(_without_bar(line) or self._bar)
                self._bar = b""
            if b"\r" in self._rest:
                self._bar = _without_bar(self._rest)
                self._rest = self._rest[self._rest.rindex(b"\r") :]
            self._rest = self._rest[:_LONGEST]

    def _catch_up(self, stream: BinaryIO) -> None:
        """Skip most of what nobody could read."""
        end, here = os.fstat(stream.fileno()).st_size, stream.tell()
        if end - here > _MOST_BEHIND:
            stream.seek(end - _STEP)
            self._rest = b""
            self._say(logging.INFO, f"... {(end - _STEP - here) / 1e6:.0f} MB of output left out, see {self._path}")

    def _forward(self, line: bytes) -> None:
        text = printable_line(line[:_LONGEST].decode(errors="replace"))
        if not text or _FOR_NOBODY.search(text):
            return
        loud = bool(_LOUD.search(text))
        if self._room[loud]:
            self._room[loud] -= 1
            self._say(logging.WARNING if loud else logging.INFO, text)
        else:
            self._left_out += 1
            self._last.append(text)

    def _tell_left_out(self, count: int) -> None:
        if count > 0:
            self._say(logging.INFO, f"... {count:,} lines left out, see {self._path}")
            self._left_out = 0


def _without_bar(line: bytes) -> bytes:
    """Of what was written over itself with carriage returns, what stood there last."""
    return next((part for part in reversed(line.split(b"\r")) if part.strip()), b"")
