"""Limits on answers and golds: what is longer or nested deeper is not even compared as written.

An answer beyond a limit is `wrong`, a gold beyond one is an `error`. Every gold of the supported problem sets is far
within the limits. `compare.sizes` bounds the numbers of a formula. Both are the cheap first defence, against known
hangs; the killable, memory-limited pool is the second, against unknown ones.
"""

from __future__ import annotations

from itertools import accumulate

MAX_CHARS = 2000
MAX_DIGITS = 1000
MAX_DEPTH = 20


def unreadable(text: str) -> str | None:
    """Return why the text must not even be compared as written ("longer than ..."); None when it may be."""
    if len(text) > MAX_CHARS:
        return f"longer than {MAX_CHARS} characters"
    steps = ((char in "{([") - (char in "})]") for char in text)
    return f"nested deeper than {MAX_DEPTH} brackets" if max(accumulate(steps), default=0) > MAX_DEPTH else None
