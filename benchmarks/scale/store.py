"""One run that grows a hundred times as long, in one store: what each command asks of it, and what a stage costs.

Each function below `grow` runs in a process of its own, so its arguments are strings.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.measure import measured, requests
from benchmarks.scale.simulated import TimedStages, config_for
from rloop_core.stages.inputs import stages_of
from rloop_core.stages.runner import StageRunner
from rloop_core.store import Lease, Store

COMMANDS = ("unbegun", "remaining", "check", "status", "report", "garbage")


def grow(
    store: str, folder: Path, real: Path, sizes: Sequence[int], environment: dict[str, str] | None = None
) -> Iterator[dict[str, Any]]:
    """Yield one row a length of the run: the cost of its stages, and of every command that reads all of it.

    Args:
        store: Where the run is made; it must hold nothing of it yet.
        folder: For scratch.
        real: Store of the run that gives the files.
        sizes: Iterations, rising.
        environment: Environment of a program that may reach the store.
    """
    for iterations in sizes:
        common = (store, folder / "scratch", "long", iterations)
        row: dict[str, Any] = {"iterations": iterations}
        row["build"] = measured("scale.store:build", *common, real, environment=environment)
        for function in ("objects", *COMMANDS):
            row[function] = measured(f"scale.store:{function}", *common, environment=environment)
        yield row


def build(store: str, scratch: str, name: str, iterations: str, real: str) -> dict[str, Any]:
    """Compute the stages that a run lacks, under its lease."""
    from rloop_core.stages.run_record import write_run_record

    config = config_for(store, Path(scratch), name, int(iterations))
    cpu, seconds = time.process_time(), list[float]()
    asked = [0] * int(iterations)
    # No heartbeat: its requests would be counted with the stages.
    with Lease(Store(store), name, heartbeat=3600.0) as lease:
        runner = StageRunner(config, Store(store), lease, launch=TimedStages(Store(real), "smoke"))
        write_run_record(runner.store, config)
        runner.preflight()
        for iteration, stage in stages_of(config):
            started, before = time.monotonic(), requests["s3"]
            if not runner.ensure(stage, iteration).cached:
                seconds.append(time.monotonic() - started)
                asked[max(0, iteration)] += requests["s3"] - before
    tenth = 5 * max(1, min(100, int(iterations) // 10))
    return {
        "stages": len(seconds),
        "cpu_a_stage": (time.process_time() - cpu) / max(1, len(seconds)),
        "first": median(seconds[1 : tenth + 1]),
        "last": median(seconds[-tenth:]),
        # Of an iteration; medians, since the first one reads problem sets as well.
        "requests_first": median(asked[: len(asked) // 2]),
        "requests_last": median(asked[len(asked) // 2 :]),
    }


def remaining(store: str, scratch: str, name: str, iterations: str) -> dict[str, Any]:
    """Ask which stages are missing, as the start of a run does."""
    runner = StageRunner(config_for(store, Path(scratch), name, int(iterations)), Store(store), None)
    return {"missing": len(runner.remaining())}


def unbegun(store: str, scratch: str, name: str, iterations: str) -> dict[str, Any]:
    """Ask the same of a run that has no stage yet."""
    return remaining(store, scratch, f"{name}-unbegun", iterations)


def check(store: str, scratch: str, name: str, iterations: str) -> dict[str, Any]:
    """Find every stage whole in the store, reading its files."""
    config = config_for(store, Path(scratch), name, int(iterations))
    with Lease(Store(store), name, heartbeat=3600.0) as lease:
        runner = StageRunner(config, Store(store), lease)
        cached = [runner.ensure(stage, iteration).cached for iteration, stage in stages_of(config)]
    assert all(cached)
    return {"stages": len(cached)}


def status(store: str, scratch: str, name: str, iterations: str) -> dict[str, Any]:
    """Run `rloop status`."""
    from rloop_core.results.status import run_status

    return {"done": run_status(Store(store), name, Path(scratch) / "cache")["counts"]["done"]}


def report(store: str, scratch: str, name: str, iterations: str) -> dict[str, Any]:
    """Run `rloop report`."""
    from rloop_core.results.report.write import write_report

    page = write_report(Store(store), [name], Path(scratch) / "report", Path(scratch) / "cache")
    return {"page_mib": page.stat().st_size / 2**20}


def garbage(store: str, scratch: str, name: str, iterations: str) -> dict[str, Any]:
    """Run `rloop gc --dry-run`."""
    from rloop_core.stages.garbage import find_garbage

    return {"found": sum(len(garbage.items) for garbage in find_garbage(Store(store), [name], 0.0))}


def objects(store: str, scratch: str, name: str, iterations: str) -> dict[str, Any]:
    """Count the objects of the run."""
    entries = Store(store).entries(name)
    return {"objects": len(entries), "mib": sum(entry.bytes for entry in entries) / 2**20}
