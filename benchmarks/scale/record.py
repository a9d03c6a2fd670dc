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


def grow_record(folder: Path, steps: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Yield one row a length of the phase in RL steps; leave nothing on the disk."""
    for count in steps:
        place = folder / f"record-{count}"
        row: dict[str, Any] = {"steps": count, "rows": count * STEP_ROWS}
        try:
            for key, function in (("made", "make"), ("harvest", "harvest"), ("filter", "filter_record")):
                row[key] = measured(f"scale.record:{function}", place, count)
        finally:
            shutil.rmtree(place, ignore_errors=True)
        yield row


def make(place: str, steps: str) -> dict[str, Any]:
    """Write the shards."""
    shards = Path(place) / "shards"
    shards.mkdir(parents=True)
    make_record(shards, int(steps) * STEP_ROWS, STEP_ROWS)
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
