"""What Prefect, processes, manifests and the lease add to a stage, against the same stages as plain functions.

Seconds of the clock grow with the load of the machine, so the plain stages are timed before and after the others.
Processor seconds are those of the flow's own process, in which no stage is computed.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.measure import Result, measured, run_timed

CONFIG = "deployments/configs/smoke.yaml"
_ROUNDS = 3


def bench() -> list[Result]:
    """Measure the seconds that orchestration adds to a stage, and until a finished run is found finished."""
    with tempfile.TemporaryDirectory() as folder:
        home = {**os.environ, "PREFECT_HOME": str(Path(folder) / "home")}
        before = measured("orchestration:plain", f"{folder}/before", environment=home)
        flows = {"": measured("orchestration:flow", f"{folder}/flow", environment=home)}
        command = [sys.executable, "-m", "rloop_core", "run", "--config", CONFIG, "--store", f"{folder}/flow"]
        command += ["--set", "placement.parallel_evaluation=false"]
        again = [run_timed(command, home)[0] for _ in range(_ROUNDS)]
        flows |= _flows_on_servers(Path(folder))
        after = measured("orchestration:plain", f"{folder}/after", environment=home)
    plain_seconds = (before["seconds"] + after["seconds"]) / 2
    stages = before["stages"] + 1  # preflight runs as one more process
    results = []
    for server, figures in flows.items():
        detail = (
            f"{figures['seconds']:.1f} s against {plain_seconds:.1f} s for {stages} stages; "
            f"{figures['cpu'] / stages:.2f} s of processor a stage; load {os.getloadavg()[0]:.1f}"
        )
        what = f"orchestration: seconds added to a stage{server}"
        results.append(Result(what, (figures["seconds"] - plain_seconds) / stages, 1.0, "s", detail))
    what = "a finished 2-iteration run, started again, start-up included"
    detail = f"no training; {', '.join(f'{seconds:.1f}' for seconds in again)} s"
    return [*results, Result(what, median(again), 10.0, "s", detail)]


def _flows_on_servers(folder: Path) -> dict[str, dict[str, float]]:
    """Run `flow` at a server of its own on each database; on Postgres if it is installed."""
    from tests.flows.postgres import is_installed, postgres_server
    from tests.flows.server import prefect_server

    figures = {}
    for database in ("SQLite", "Postgres") if is_installed() else ("SQLite",):
        place = folder / database
        place.mkdir()
        address = postgres_server(place / "postgres.log", durable=True) if database == "Postgres" else nullcontext()
        triggers = {"PREFECT_SERVER_SERVICES_TRIGGERS_ENABLED": "true"}  # as servers have them
        with address as uri, prefect_server(place, uri, **triggers) as server:
            measures = measured("orchestration:flow", f"{place}/store", environment=server.environment())
            figures[f", server on {database}"] = measures
    return figures


def _config(store: str) -> Any:
    from rloop_core.config import load_config

    return load_config(CONFIG, [f"placement.store={store}", "placement.parallel_evaluation=false"])


def plain(store: str) -> dict[str, Any]:
    """Run every stage as a function in this process."""
    import torch  # noqa: F401 - its import is not a stage's time

    import rloop_core.stages.preload  # noqa: F401
    from rloop_core.stages.execute import execute
    from rloop_core.stages.inputs import stages_of
    from rloop_core.stages.runner import StageRunner
    from rloop_core.store import Store

    config = _config(store)
    runner = StageRunner(config, Store(store), None, launch=lambda job, on_event, **limits: execute(job, on_event))
    stages = stages_of(config)
    started = time.monotonic()
    for iteration, stage in stages:
        runner.ensure(stage, iteration)
    return {"seconds": time.monotonic() - started, "stages": len(stages)}


def flow(store: str) -> dict[str, Any]:
    """Run the flow; `cpu` is this process's."""
    from flows.embedded import prefect_api
    from rloop_core.stages.process import start_fork_server

    config = _config(store)
    start_fork_server()
    with prefect_api():
        from prefect import get_client

        from flows.rloop import rloop

        time.sleep(5)
        with get_client(sync_client=True) as client:
            client.read_flows()
        started, cpu = time.monotonic(), time.process_time()
        rloop(config)
        return {"seconds": time.monotonic() - started, "cpu": time.process_time() - cpu}
