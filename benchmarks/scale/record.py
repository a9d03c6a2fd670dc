"""A phase of up to ten million rollouts: the proof that it is complete, consolidation, success rates, and the filter.

Rows are those of `benchmarks/filter.py`; shards have the 512 problems x 16 rollouts of a step of DAPO's reference run.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.filter import GROUP, make_record
from benchmarks.measure import measured

STEP_ROWS = 8192
BLOCK_STEPS = 8


def grow_record(folder: Path, steps: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Yield one row a length of the phase in RL steps; leave nothing on the disk."""
    for count in steps:
        place = folder / f"record-{count}"
        row: dict[str, Any] = {"steps": count, "rows": count * STEP_ROWS}
        try:
            row["made"] = measured("scale.record:make", place, count)
            row["harvest"] = measured("scale.record:harvest", place, count)
            row["filter"] = measured("scale.record:filter_record", place, count)
        finally:
            shutil.rmtree(place, ignore_errors=True)
        yield row


def make(place: str, steps: str) -> dict[str, Any]:
    """Write the shards: one block of rollouts again and again, each time with new problems of the same difficulty."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    from rloop_core.trajectories.parquet import DeterministicWriter
    from rloop_core.trajectories.schema import TRAJECTORY_SCHEMA

    block, shards = Path(place) / "block", Path(place) / "shards"
    for folder in (block, shards):
        folder.mkdir(parents=True)
    make_record(block, BLOCK_STEPS * STEP_ROWS)
    rows = pa.concat_tables([pq.read_table(path) for path in sorted(block.glob("*.parquet"))])
    shutil.rmtree(block)
    problem = np.array([int(identifier, 16) for identifier in rows["problem_id"].to_pylist()])
    for step in range(1, int(steps) + 1):
        number, first = (step - 1) // BLOCK_STEPS, (step - 1) % BLOCK_STEPS * STEP_ROWS
        step_rows = rows.slice(first, STEP_ROWS)
        new_problem = problem[first : first + STEP_ROWS] + number * (int(problem.max()) + 1)
        columns = {
            "step": np.full(STEP_ROWS, step),
            "policy_step": np.full(STEP_ROWS, step * 2),
            "group_id": [f"{step}-{row // GROUP}" for row in range(STEP_ROWS)],
            "problem_id": [f"{identifier:016x}" for identifier in new_problem],
        }
        arrays = [
            pa.array(columns[field.name]).cast(field.type)
            if field.name in columns
            else step_rows[field.name].combine_chunks()
            for field in TRAJECTORY_SCHEMA
        ]
        with DeterministicWriter(shards / f"step-{step:06d}.rank-00.parquet", TRAJECTORY_SCHEMA) as writer:
            writer.write(pa.Table.from_arrays(arrays, schema=TRAJECTORY_SCHEMA))
    return {"gib": _gib(shards)}


def harvest(place: str, steps: str) -> dict[str, Any]:
    """Do what stage harvest does with shards on its disk; explore's are deleted afterwards, to save room."""
    from rloop_core.trajectories.shards import consolidate
    from rloop_core.trajectories.success import success_rates, write_success_rates
    from rloop_core.trajectories.validation import prove_complete

    shards = sorted((Path(place) / "shards").glob("*.parquet"))
    proof = prove_complete(shards, steps=int(steps), ranks=1, group_size=GROUP, min_groups_per_step=STEP_ROWS // GROUP)
    files = consolidate(shards, Path(place) / "parts")
    rates = success_rates(files)
    write_success_rates(rates, Path(place) / "success_rates.parquet")
    shutil.rmtree(Path(place) / "shards")
    return {"trajectories": proof.trajectories, "problems": rates.height, "files": len(files)}


def filter_record(place: str, steps: str) -> dict[str, Any]:
    """Do what stage filter does, under the paper's settings."""
    from rloop_core.config import FilterConfig
    from rloop_core.trajectories.filter import filter_experts

    parts = sorted((Path(place) / "parts").glob("*.parquet"))
    report = filter_experts(parts, FilterConfig(), Path(place) / "experts.parquet")
    return {"experts": report.trajectories, "gib": _gib(Path(place) / "parts")}


def _gib(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.iterdir()) / 2**30
