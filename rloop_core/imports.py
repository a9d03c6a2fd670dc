"""What a short command does not need is not loaded, and the rest without detours."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_pandas() -> Iterator[None]:
    """Imports in the block go without pandas, as if it were not installed.

    Prefect loads it for cache keys of data frames, and Arrow to tell what it converts from a data frame: half a second
    of a command that has no data frame.
    """
    if "pandas" in sys.modules:
        yield
        return
    sys.modules["pandas"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        sys.modules.pop("pandas", None)


@contextmanager
def without_collections() -> Iterator[None]:
    """No garbage is collected in the block: a tenth of the time that large libraries take to load.

    Modules that load leave little garbage, but each collection goes through all of them.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
