"""How the cost of reading grows with the text, whatever machine reads it."""

from __future__ import annotations

import time
from collections.abc import Callable

_TIMES = 16


def grows_linearly(work: Callable[[str], object], text: Callable[[int], str], size: int) -> bool:
    """Whether a text of `size` costs far less than 256 times as much processor time as one of a sixteenth of it."""
    small = min(_seconds(work, text(size // _TIMES)) for _ in range(3))
    return any(_seconds(work, text(size)) < 5 * _TIMES * max(small, 1e-4) for _ in range(3))


def _seconds(work: Callable[[str], object], text: str) -> float:
    began = time.process_time()
    work(text)
    return time.process_time() - began
