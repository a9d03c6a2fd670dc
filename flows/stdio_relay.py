"""What a run prints, apart from whoever reads it: a worker that is killed would take the run along at its next line.

Standard output and error of a run are pipes to its worker. Once nobody holds their other end, a write fails, and the
library that prints Prefect's log lines ends the process for that.
"""

import atexit
import contextlib
import os
import select
import sys
import threading
import time
from functools import cache

_PIECE = 1 << 16
_LAST_WORDS_SECONDS = 2.0


@cache
def outlive_reader() -> None:
    """From now on this process and its children print into pipes of its own; what nobody reads any more is dropped."""
    for pump in [_Pump(1), _Pump(2)]:
        pump.start()
        atexit.register(pump.drain)


class _Pump(threading.Thread):
    """Carries what is printed to where it went before.

    Args:
        descriptor: 1 or 2; becomes a pipe.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__(name=f"rloop-output-{descriptor}", daemon=True)
        sys.stdout.flush()
        sys.stderr.flush()
        self._outside = os.dup(descriptor)  # children do not inherit it, and cannot keep the worker waiting
        self._source, sink = os.pipe()
        os.dup2(sink, descriptor)
        os.close(sink)
        self._carrying = threading.Lock()

    def run(self) -> None:
        """Until the process ends."""
        while True:
            select.select([self._source], [], [])
            with self._carrying:
                piece = os.read(self._source, _PIECE)
                with contextlib.suppress(OSError):
                    while piece:
                        piece = piece[os.write(self._outside, piece) :]

    def drain(self) -> None:
        """Give the last lines a moment to arrive."""
        deadline = time.monotonic() + _LAST_WORDS_SECONDS
        while (left := deadline - time.monotonic()) > 0 and self._carrying.acquire(timeout=left):
            waiting = select.select([self._source], [], [], 0)[0]
            self._carrying.release()
            if not waiting:
                return
            time.sleep(0.01)
