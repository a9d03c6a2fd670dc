"""What a short command does not need is not loaded, and the rest without detours."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class _NotNow(MetaPathFinder, Loader):
    """Finds pandas, as whoever asks whether it is installed should be told, and fails to load it.

    A None in `sys.modules` will not do: extension modules take it for the module.
    """

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name == "pandas" else None

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        raise ModuleNotFoundError("pandas is not loaded here", name=spec.name)

    def exec_module(self, module: ModuleType) -> None:
        raise ModuleNotFoundError("pandas is not loaded here", name=module.__name__)


@contextmanager
def without_pandas() -> Iterator[None]:
    """Imports in the block go without pandas, as if it could not be loaded.

    Prefect loads it for cache keys of data frames, and Arrow to tell what it converts from a data frame: half a second
    of a command that has no data frame.
    """
    if "pandas" in sys.modules:
        yield
        return
    finder = _NotNow()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


@contextmanager
def without_collections() -> Iterator[None]:
    """No garbage is collected in the block: a tenth to a quarter of the time that large libraries take to load.

    Modules that load leave little garbage, but each collection goes through all of them.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
