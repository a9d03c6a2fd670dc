"""One way to open trajectory files lazily: schema checked first, nothing guessed from their names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rloop_core.errors import StageError
from rloop_core.trajectories.schema import check_schema

if TYPE_CHECKING:
    import polars as pl


def scan(paths: Sequence[str | Path]) -> pl.LazyFrame:
    """A lazy frame over all rows of ``paths``, in the order of the paths.

    Raises:
        StageError: no paths, or one that is not of the trajectory schema.
    """
    import polars as pl

    if not paths:
        raise StageError(
            "there are no trajectory files to read",
            field="trajectories",
            fix="run the explore stage first, or check the path",
        )
    for path in paths:
        check_schema(path)
    # A run's name may hold "[" or "key=value": paths are names here, not patterns and not partitions.
    # Predicate columns first, the heavy ones only for rows that pass: measured 1.6 x faster for the filter's
    # copy.
    return pl.scan_parquet([Path(path) for path in paths], glob=False, hive_partitioning=False, parallel="prefiltered")
