"""Many small shards into a few sorted files: the same rows, the same bytes, one shard in memory at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import pyarrow as pa

from rloop_core.errors import StageError
from rloop_core.trajectories.parquet import DeterministicWriter, canonical_rows, gather_rows
from rloop_core.trajectories.schema import CANONICAL_ORDER, TRAJECTORY_SCHEMA, check_schema


def consolidate(paths: Sequence[str | Path], out_dir: str | Path, rows_per_file: int = 200_000) -> list[Path]:
    """Write all rows of ``paths`` to ``part-00000.parquet`` and so on, in canonical order (step, rank, group,
    sample).

    The parts depend on the rows and ``rows_per_file`` alone, not on how the input was cut into files. Rows
    are copied one input row group at a time.

    Args:
        paths: Trajectory files in any order whose ranges of (step, rank) do not overlap, as sealed shards
            are.
        out_dir: Directory of the parts; parts that are there already are replaced.
        rows_per_file: Rows in each part but the last.

    Raises:
        StageError: no rows, a file off the schema, or files that overlap (attempts of one step, most likely).
    """
    import pyarrow.parquet as pq

    spans = []
    for path in paths:
        check_schema(path)
        keys = pq.read_table(path, columns=["step", "rank"])
        if keys.num_rows:
            order = canonical_rows(keys, ("step", "rank"))
            ends = keys.take([order[0], order[-1]]).to_pylist()
            spans.append(((ends[0]["step"], ends[0]["rank"]), (ends[1]["step"], ends[1]["rank"]), Path(path)))
    spans.sort()
    if not spans:
        raise StageError("there are no trajectories to consolidate", field="trajectories")
    for (_, last, path), (first, _, other) in pairwise(spans):
        if first <= last:
            raise StageError(
                f"{path.name} and {other.name} both hold (step {first[0]}, rank {first[1]})",
                field="trajectories",
                fix="consolidate the winning shards only",
            )
    out = Path(out_dir)
    out.mkdir(parents=True, exist_ok=True)
    for leftover in [*out.glob("part-*.parquet"), *out.glob(".part-*.parquet.tmp")]:
        leftover.unlink()
    paths_written: list[Path] = []
    writer: DeterministicWriter | None = None
    try:
        for table in _sorted_rows([path for _, _, path in spans]):
            while table.num_rows:
                if writer is None:
                    paths_written.append(out / f"part-{len(paths_written):05d}.parquet")
                    writer = DeterministicWriter(paths_written[-1], TRAJECTORY_SCHEMA)
                room = rows_per_file - writer.rows
                writer.write(table.slice(0, room))
                table = table.slice(room)
                if writer.rows == rows_per_file:
                    writer.commit()
                    writer = None
        if writer is not None:
            writer.commit()
    except BaseException:
        if writer is not None:
            writer.abandon()
        raise
    return paths_written


def _sorted_rows(paths: Sequence[Path]) -> Iterator[pa.Table]:
    import pyarrow.parquet as pq

    for path in paths:
        order = canonical_rows(pq.read_table(path, columns=list(CANONICAL_ORDER)), CANONICAL_ORDER)
        yield from gather_rows(path, order)
