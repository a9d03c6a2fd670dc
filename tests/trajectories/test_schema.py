from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rloop_core.errors import StageError
from rloop_core.trajectories.schema import SCHEMA_VERSION, TRAJECTORY_SCHEMA, check_schema, to_table


def test_rows_survive_a_round_trip_through_parquet(rollout, tmp_path: Path) -> None:
    rows = [rollout(sample=0), rollout(sample=1, verdict="no_answer", tokens=())]
    pq.write_table(to_table(rows), tmp_path / "a.parquet")
    check_schema(tmp_path / "a.parquet")
    read = pq.read_table(tmp_path / "a.parquet")
    assert read.schema.equals(TRAJECTORY_SCHEMA, check_metadata=True)
    assert read.to_pylist() == rows
    assert TRAJECTORY_SCHEMA.metadata == {b"rloop.trajectory": SCHEMA_VERSION.encode()}


def test_a_file_of_another_version_or_with_other_columns_is_refused(rollout, tmp_path: Path) -> None:
    table = to_table([rollout()])
    other = tmp_path / "other.parquet"
    pq.write_table(table.replace_schema_metadata({b"rloop.trajectory": b"0"}), other)
    with pytest.raises(StageError, match="version 0"):
        check_schema(other)
    pq.write_table(table.drop_columns(["boxes"]).append_column("box", pa.array(["x"])), other)
    with pytest.raises(StageError, match="other columns"):
        check_schema(other)
    other.write_bytes(b"not parquet")
    with pytest.raises(StageError, match="not a readable parquet file"):
        check_schema(other)
