from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rloop_core.errors import StageError
from rloop_core.trajectories.consolidate import consolidate
from rloop_core.trajectories.schema import CANONICAL_ORDER, check_schema, to_table
from rloop_core.trajectories.shards import seal_shards, write_shard


def test_parts_hold_all_rows_sorted_whatever_the_cut_of_the_input(phase, tmp_path: Path) -> None:
    shards = phase(4, 2)
    for (step, rank), rows in shards.items():
        write_shard(tmp_path / "in", step, rank, 0, rows[::-1])
    sealed = seal_shards(tmp_path / "in", tmp_path / "sealed")
    parts = consolidate(sealed[::-1], tmp_path / "out", rows_per_file=25)
    assert [p.name for p in parts] == ["part-00000.parquet", "part-00001.parquet", "part-00002.parquet"]
    assert [pq.read_metadata(p).num_rows for p in parts] == [25, 25, 14]
    rows = pa.concat_tables(pq.read_table(p) for p in parts).to_pylist()
    everything = [row for shard in shards.values() for row in shard]
    assert rows == sorted(everything, key=lambda row: [row[name] for name in CANONICAL_ORDER])
    for part in parts:
        check_schema(part)

    pq.write_table(to_table(everything[::-1]), tmp_path / "one.parquet", row_group_size=9)
    again = consolidate([tmp_path / "one.parquet"], tmp_path / "again", rows_per_file=25)
    assert [p.read_bytes() for p in again] == [p.read_bytes() for p in parts]


def test_old_parts_are_replaced(phase, tmp_path: Path) -> None:
    path = write_shard(tmp_path / "in", 1, 0, 0, phase(1, 1)[1, 0])
    consolidate([path], tmp_path / "out", rows_per_file=2)
    assert consolidate([path], tmp_path / "out") == list((tmp_path / "out").iterdir())


def test_two_attempts_of_one_shard_are_refused(phase, tmp_path: Path) -> None:
    paths = [write_shard(tmp_path, 1, 0, attempt, phase(1, 1, attempt=attempt)[1, 0]) for attempt in (0, 1)]
    with pytest.raises(StageError, match=r"both hold \(step 1, rank 0\)"):
        consolidate(paths, tmp_path / "out")
    with pytest.raises(StageError, match="no trajectories"):
        consolidate([], tmp_path / "out")
