"""Check how the processor time of a function grows with the length of its text, on any machine."""

from __future__ import annotations

import time
from collections.abc import Callable

_TIMES = 16


def grows_linearly(work: Callable[[str], object], text: Callable[[int], str], size: int) -> bool:
    """Return True if 16 times the text takes far less than 256 times the processor time."""
    small = min(_seconds(work, text(size // _TIMES)) for _ in range(3))
    return any(_seconds(work, text(size)) < 5 * _TIMES * max(small, 1e-4) for _ in range(3))


def _seconds(work: Callable[[str], object], text: str) -> float:
    began = time.process_time()
    work(text)
    return time.process_time() - began
