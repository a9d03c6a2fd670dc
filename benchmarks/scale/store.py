"""One run that becomes a hundred times as long, in one store: what each command asks of it, and what a stage costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.scale.measure import measured

LOOKS = ("unbegun", "remaining", "check", "status", "report", "garbage")


def grow(
    store: str, folder: Path, real: Path, sizes: Sequence[int], environment: dict[str, str] | None = None
) -> Iterator[dict[str, Any]]:
    """One row a length of the run: the cost of its stages, and of every command that looks at all of it.

    Args:
        store: Where the run is made; nothing of it is there yet.
        folder: For scratch.
        real: Store of the run that gives the files.
        sizes: Iterations, rising.
        environment: Of a program that may reach the store.
    """
    for iterations in sizes:
        common = (store, folder / "scratch", "long", iterations)
        row: dict[str, Any] = {"iterations": iterations}
        row["build"] = measured("looks:build", *common, real, environment=environment)
        row["objects"] = measured("looks:objects", *common, environment=environment)
        for look in LOOKS:
            row[look] = measured(f"looks:{look}", *common, environment=environment)
        yield row
