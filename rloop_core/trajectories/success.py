"""Success rates: correct / attempts of every problem over the whole RL phase.

All recorded rollouts count, also those that dynamic sampling dropped from the update (paper section 4.2): the groups
in the update alone would hide the problems that are almost never solved.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from rloop_core.trajectories.parquet import DeterministicWriter
from rloop_core.trajectories.schema import scan

if TYPE_CHECKING:
    import polars as pl

CORRECT = "correct"  # the one verdict with R(tau) = 1

SUCCESS_SCHEMA: pa.Schema = pa.schema(
    [
        pa.field("problem_id", pa.string(), nullable=False),
        pa.field("gold", pa.string(), nullable=False),
        pa.field("attempts", pa.int64(), nullable=False),
        pa.field("correct", pa.int64(), nullable=False),
        pa.field("rate", pa.float64(), nullable=False),
        pa.field("first_correct_step", pa.int32()),
        pa.field("last_correct_step", pa.int32()),
        pa.field("truncated", pa.int64(), nullable=False),
    ]
)


def success_rates(paths: Sequence[str | Path]) -> pl.DataFrame:
    """Return one row per problem, sorted by problem_id.

    Columns: gold, attempts, correct, rate in [0, 1], RL steps of the first and the last correct rollout (null when
    never solved), and the number of truncated rollouts.
    """
    import polars as pl

    correct = pl.col("verdict") == CORRECT
    solved_step = pl.when(correct).then(pl.col("step"))
    return (
        scan(paths)
        .group_by("problem_id")
        .agg(
            pl.col("gold").min(),
            pl.len().cast(pl.Int64).alias("attempts"),
            correct.sum().cast(pl.Int64).alias("correct"),
            solved_step.min().alias("first_correct_step"),
            solved_step.max().alias("last_correct_step"),
            (~pl.col("finished")).sum().cast(pl.Int64).alias("truncated"),
        )
        .with_columns((pl.col("correct") / pl.col("attempts")).alias("rate"))
        .select(SUCCESS_SCHEMA.names)
        .sort("problem_id")
        .collect(engine="streaming")
    )


def write_success_rates(rates: pl.DataFrame, path: str | Path) -> Path:
    """Write the table of `success_rates` as parquet and return the path; equal rates give equal bytes."""
    import polars as pl

    with DeterministicWriter(path, SUCCESS_SCHEMA) as writer:
        writer.write(rates.to_arrow(compat_level=pl.CompatLevel.oldest()))
    return Path(path)
