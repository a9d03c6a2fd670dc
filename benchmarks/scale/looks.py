"""What is asked of a long run: its stages one by one, and the commands that look at all of it."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

from benchmarks.scale.measure import requests


def build(store: str, scratch: str, name: str, iterations: str, real: str) -> dict[str, Any]:
    """Compute what a run lacks, stage by stage, under its lease."""
    from benchmarks.scale.simulated import TimedStages, config_for
    from rloop_core.stages.order import stages_of
    from rloop_core.stages.run_record import write_run_record
    from rloop_core.stages.runner import StageRunner
    from rloop_core.store import Lease, Store

    config = config_for(store, Path(scratch), name, int(iterations))
    where = Store(store)
    took: list[float] = []
    asked = [0] * int(iterations)
    with Lease(where, name, heartbeat=3600.0) as lease:  # its requests would be counted with the stages
        runner = StageRunner(config, where, lease, launch=TimedStages(Store(real), "smoke"))
        write_run_record(where, config)
        runner.preflight()
        for iteration, stage in stages_of(config):
            begun, before = time.monotonic(), requests["s3"]
            if not runner.ensure(stage, iteration).cached:
                took.append(time.monotonic() - begun)
                asked[max(0, iteration)] += requests["s3"] - before
    hundred = 5 * max(1, min(100, int(iterations) // 10))
    return {
        "stages": len(took),
        "first": statistics.median(took[1 : hundred + 1]),
        "last": statistics.median(took[-hundred:]),
        # Of an iteration; medians, since the first one reads problem sets as well.
        "requests_first": statistics.median(asked[: len(asked) // 2]),
        "requests_last": statistics.median(asked[len(asked) // 2 :]),
    }


def remaining(store: str, scratch: str, name: str, iterations: str) -> dict[str, Any]:
    """What a start of the run asks first."""
    from benchmarks.scale.simulated import config_for
    from rloop_core.stages.runner import StageRunner
    from rloop_core.store import Store

    runner = StageRunner(config_for(store, Path(scratch), name, int(iterations)), Store(store), None)
    return {"missing": len(runner.remaining())}


def unbegun(store: str, scratch: str, name: str, iterations: str) -> dict[str, Any]:
    """The same of a run of which nothing is there."""
    return remaining(store, scratch, f"{name}-unbegun", iterations)


def check(store: str, scratch: str, name: str, iterations: str) -> dict[str, Any]:
    """Every stage found whole in the store, its files read."""
    from benchmarks.scale.simulated import config_for
    from rloop_core.stages.order import stages_of
    from rloop_core.stages.runner import StageRunner
    from rloop_core.store import Lease, Store

    config = config_for(store, Path(scratch), name, int(iterations))
    where = Store(store)
    with Lease(where, name, heartbeat=3600.0) as lease:
        runner = StageRunner(config, where, lease)
        found = [runner.ensure(stage, iteration).cached for iteration, stage in stages_of(config)]
    assert all(found)
    return {"stages": len(found)}


def status(store: str, scratch: str, name: str, iterations: str) -> dict[str, Any]:
    """`rloop status`."""
    from rloop_core.results.status import run_status
    from rloop_core.store import Store

    return {"done": run_status(Store(store), name, Path(scratch) / "cache")["counts"]["done"]}


def report(store: str, scratch: str, name: str, iterations: str) -> dict[str, Any]:
    """`rloop report`."""
    from rloop_core.results.report.write import write_report
    from rloop_core.store import Store

    page = write_report(Store(store), [name], Path(scratch) / "report", Path(scratch) / "cache")
    return {"page_mib": page.stat().st_size / 2**20}


def garbage(store: str, scratch: str, name: str, iterations: str) -> dict[str, Any]:
    """`rloop gc --dry-run`."""
    from rloop_core.stages.garbage import find_garbage
    from rloop_core.store import Store

    return {"found": sum(len(one.items) for one in find_garbage(Store(store), [name], 0.0))}


def objects(store: str, scratch: str, name: str, iterations: str) -> dict[str, Any]:
    """What the run holds."""
    from rloop_core.store import Store

    entries = Store(store).entries(name)
    return {"objects": len(entries), "mib": sum(entry.bytes for entry in entries) / 2**20}
