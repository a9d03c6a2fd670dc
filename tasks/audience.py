"""Whether anybody can look at what is shown: the embedded Prefect API has no UI, and is gone with its command."""

from collections.abc import Iterator
from contextlib import contextmanager

_embedded = False


def is_watched() -> bool:
    """Whether live progress, figures, tags and log lines have a UI to be seen in."""
    return not _embedded


@contextmanager
def nobody_watching() -> Iterator[None]:
    """What is made in this block is shown to nobody, and need not be drawn."""
    global _embedded
    before, _embedded = _embedded, True
    try:
        yield
    finally:
        _embedded = before
