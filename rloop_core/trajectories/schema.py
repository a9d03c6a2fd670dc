"""The trajectory record: one row a rollout, one Arrow schema, versioned.

Every tool that reads or writes trajectories goes through this schema, so a file written by another version is
refused with the differences named instead of being misread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from rloop_core.errors import StageError

SCHEMA_VERSION = "1"
VERSION_KEY = b"rloop.trajectory"

# Parquet names the child of a list "element"; naming it so here makes the schema survive a round trip
# unchanged.
_TOKEN_IDS = pa.list_(pa.field("element", pa.int32()))


def _column(name: str, kind: pa.DataType, nullable: bool = False) -> pa.Field:
    return pa.field(name, kind, nullable=nullable)


TRAJECTORY_SCHEMA: pa.Schema = pa.schema(
    [
        _column("run", pa.string()),
        _column("iteration", pa.int32()),
        _column("step", pa.int32()),  # RL step, from 1; never the optimizer's global_step
        _column("rank", pa.int32()),
        _column("attempt", pa.int32()),
        _column("group_id", pa.string()),
        _column("sample", pa.int32()),  # 0 .. G-1 within the group
        _column("problem_id", pa.string()),
        _column("prompt", pa.string()),
        _column("completion", pa.string()),
        _column("prompt_ids", _TOKEN_IDS),
        _column("completion_ids", _TOKEN_IDS),
        _column("answer", pa.string(), nullable=True),
        _column("gold", pa.string()),
        _column("verdict", pa.string()),
        _column("reward", pa.float32()),  # shaped, as trained on
        _column("length", pa.int32()),  # completion tokens
        _column("finished", pa.bool_()),  # EOS seen within the budget
        _column("kept", pa.bool_()),  # in the update after dynamic sampling
        _column("logprob_sum", pa.float32(), nullable=True),  # as drawn: temperature and nucleus included
        _column("entropy_mean", pa.float32(), nullable=True),
        _column("boxes", pa.int32()),  # boxed answers seen in the completion
        _column("policy_step", pa.int32()),  # optimizer updates before sampling
    ],
    metadata={VERSION_KEY: SCHEMA_VERSION.encode()},
)

# The one order of rows everywhere: it makes "same rows" mean "same bytes".
CANONICAL_ORDER: tuple[str, ...] = ("step", "rank", "group_id", "sample")


def to_table(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Rows (one mapping a rollout, keys exactly the schema's columns) as a table of ``TRAJECTORY_SCHEMA``.

    Raises:
        StageError: a row lacks a column or has an unknown one, a value has the wrong type, or a required
            value is None.
    """
    expected = set(TRAJECTORY_SCHEMA.names)
    for index, row in enumerate(rows):
        if row.keys() != expected:
            missing, unknown = sorted(expected - row.keys()), sorted(row.keys() - expected)
            parts = [
                f"{what} column(s) {', '.join(names)}"
                for what, names in (("missing", missing), ("unknown", unknown))
                if names
            ]
            raise StageError(
                f"trajectory row {index} has {' and '.join(parts)}",
                field="trajectories",
                fix="write exactly the columns of TRAJECTORY_SCHEMA",
            )
    columns = []
    for field in TRAJECTORY_SCHEMA:
        try:
            column = pa.array([row[field.name] for row in rows], type=field.type)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
            what = f"column {field.name} wants {field.type}: {error}"
            raise StageError(what, field="trajectories") from error
        if column.null_count and not field.nullable:
            raise StageError(
                f"column {field.name} is required but {column.null_count} row(s) have none",
                field="trajectories",
            )
        columns.append(column)
    return pa.Table.from_arrays(columns, schema=TRAJECTORY_SCHEMA)


def check_schema(path: str | Path) -> None:
    """Read the footer of one parquet file and refuse it unless it holds exactly ``TRAJECTORY_SCHEMA``.

    Raises:
        StageError: the file is unreadable, of another schema version, or its columns differ (each one named).
    """
    import pyarrow.parquet as pq

    try:
        found = pq.read_schema(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise StageError(f"{path} is not a readable parquet file: {error}", field="trajectories") from error
    version = (found.metadata or {}).get(VERSION_KEY, b"none").decode()
    if version != SCHEMA_VERSION:
        raise StageError(
            f"{path} has trajectory schema version {version}, not {SCHEMA_VERSION}",
            field="trajectories",
            fix="write the file again with this version of rloop",
        )
    differences = []
    for name in dict.fromkeys([*TRAJECTORY_SCHEMA.names, *found.names]):
        if found.names.count(name) != 1:
            differences.append(f"{name} missing" if name not in found.names else f"{name} repeated")
        elif name not in TRAJECTORY_SCHEMA.names:
            differences.append(f"{name} unknown")
        elif not found.field(name).equals(TRAJECTORY_SCHEMA.field(name)):
            differences.append(f"{name} is '{found.field(name)}', not '{TRAJECTORY_SCHEMA.field(name)}'")
    if not differences and found.names != TRAJECTORY_SCHEMA.names:
        differences.append("columns in another order")
    if differences:
        raise StageError(f"{path} is no trajectory file: {'; '.join(differences)}", field="trajectories")
