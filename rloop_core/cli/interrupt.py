"""End a run within seconds of Ctrl-C or SIGTERM, with one line of output.

A flow that reports its end to a server that is gone would retry for minutes and fill the screen. Finished work is in
the store: no need to wait.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any, NoReturn

from rloop_core.runtime.lifetime import processes_below

INTERRUPTED, TERMINATED = 130, 143
GRACE_SECONDS = 4.0
LINE = "interrupted; finished work is kept, and the same command resumes"


@contextlib.contextmanager
def ending_promptly() -> Iterator[None]:
    """On SIGINT or SIGTERM in this block, give the flow a few seconds to end its stages, then end the process tree."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ending = _Ending()
    before = {number: signal.signal(number, ending.on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    except BaseException:
        if ending.code:
            ending.end(ending.code)
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Ending:
    def __init__(self) -> None:
        self.code = 0
        self._screen: int | None = None

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.code:
            self.end(self.code)
        self.code = INTERRUPTED if number == signal.SIGINT else TERMINATED
        self._silence()
        threading.Thread(target=self._end_later, daemon=True).start()
        raise KeyboardInterrupt

    def end(self, code: int) -> NoReturn:
        """Print the line, end every process below this one, and exit without running exit handlers."""
        self._silence()
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
        with contextlib.suppress(OSError):
            os.write(self._screen or 2, f"rloop: {LINE}\n".encode())
        _end_children()
        os._exit(code)

    def _end_later(self) -> None:
        threading.Event().wait(GRACE_SECONDS)
        self.end(self.code)

    def _silence(self) -> None:
        """Redirect stderr to /dev/null, so that the screen shows one line only."""
        if self._screen is None:
            with contextlib.suppress(OSError):
                self._screen = os.dup(2)
                os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def _end_children() -> None:
    import psutil

    children: list[Any] = processes_below(os.getpid())
    for act in ("terminate", "kill"):
        for child in children:
            with contextlib.suppress(psutil.Error):
                getattr(child, act)()
        _, children = psutil.wait_procs(children, timeout=2.0)
