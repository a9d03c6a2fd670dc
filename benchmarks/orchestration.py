"""What Prefect, processes, manifests and the lease add to a stage, against the same stages as plain functions.

Seconds of the clock grow with the load of the machine, and the stages as plain functions are timed before and after the
others. Processor seconds are those of the flow's own process, in which no stage is computed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from benchmarks.line import Line

_ROUNDS = 3

_PLAIN = """
import sys, time, json
import rloop_core.stages.preload
from rloop_core.config import load_config
from rloop_core.stages.execute import execute
from rloop_core.stages.order import stages_of
from rloop_core.stages.runner import StageRunner
from rloop_core.store import Store
config = load_config("deployments/configs/smoke.yaml", sys.argv[1:])
runner = StageRunner(config, Store(config.placement.store), None, launch=lambda job, tell, **rest: execute(job, tell))
import torch, tempfile
stages = stages_of(config)
started = time.monotonic()
for iteration, stage in stages:
    runner.ensure(stage, iteration)
print(json.dumps({"seconds": time.monotonic() - started, "stages": len(stages)}))
"""

_FLOW = """
import resource, sys, time, json
from rloop_core.config import load_config
from rloop_core.stages.process import warm_up
from flows.embedded import prefect_api
config = load_config("deployments/configs/smoke.yaml", sys.argv[1:])
warm_up()
with prefect_api():
    from flows.rloop import rloop
    from prefect import get_client
    time.sleep(5)
    with get_client(sync_client=True) as client:
        client.read_flows()
    def used():
        own = resource.getrusage(resource.RUSAGE_SELF)
        return own.ru_utime + own.ru_stime
    started, before = time.monotonic(), used()
    rloop(config)
    print(json.dumps({"seconds": time.monotonic() - started, "processor": used() - before}))
"""


def bench() -> list[Line]:
    """Seconds a stage that orchestration adds; and seconds until a finished run is found finished."""
    with tempfile.TemporaryDirectory() as folder:
        home = {**os.environ, "PREFECT_HOME": str(Path(folder) / "home")}
        flow = [f"placement.store={folder}/flow", "placement.parallel_evaluation=false"]

        def plainly(name: str) -> dict[str, float]:
            return _run(_PLAIN, home, f"placement.store={folder}/{name}", "placement.parallel_evaluation=false")

        plain = plainly("before")
        orchestrated = _run(_FLOW, home, *flow)
        again = [_time_again(home, f"{folder}/flow") for _ in range(_ROUNDS)]
        served = _served(Path(folder))
        seconds_plain = (plain["seconds"] + plainly("after")["seconds"]) / 2
    stages = plain["stages"] + 1  # preflight runs as one more process

    def added(what: str, found: dict[str, float]) -> Line:
        name = f"orchestration: seconds added to a stage{what}"
        detail = (
            f"{found['seconds']:.1f} s against {seconds_plain:.1f} s for {stages} stages; "
            f"{found['processor'] / stages:.2f} s of processor a stage; load {os.getloadavg()[0]:.1f}"
        )
        return Line(name, (found["seconds"] - seconds_plain) / stages, 1.0, "s", detail)

    return [
        added("", orchestrated),
        *(added(f", server on {database}", found) for database, found in served.items()),
        Line(
            "a finished 2-iteration run, started again, start-up included",
            median(again),
            10.0,
            "s",
            f"no training; {', '.join(f'{one:.1f}' for one in again)} s",
        ),
    ]


def _served(folder: Path) -> dict[str, dict[str, float]]:
    """What `_FLOW` tells of the same run at a server of its own, by database; Postgres where it is installed."""
    from contextlib import nullcontext

    from tests.flows.postgres import is_installed, postgres_server
    from tests.flows.server import prefect_server

    found = {}
    for database in ("SQLite", "Postgres") if is_installed() else ("SQLite",):
        place = folder / database
        place.mkdir()
        address = postgres_server(place / "postgres.log", durable=True) if database == "Postgres" else nullcontext()
        as_usual = {"PREFECT_SERVER_SERVICES_TRIGGERS_ENABLED": "true"}
        with address as uri, prefect_server(place, uri, **as_usual) as server:
            overrides = (f"placement.store={place}/store", "placement.parallel_evaluation=false")
            found[database] = _run(_FLOW, server.environment(), *overrides)
    return found


def _run(script: str, environment: dict[str, str], *overrides: str) -> dict[str, float]:
    command = [sys.executable, "-c", script, *overrides]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def _time_again(environment: dict[str, str], store: str) -> float:
    command = [sys.executable, "-m", "rloop_core", "run", "--config", "deployments/configs/smoke.yaml"]
    started = time.monotonic()
    overrides = ["--set", "placement.parallel_evaluation=false", "--store", store]
    subprocess.run([*command, *overrides], env=environment, capture_output=True, check=True)
    return time.monotonic() - started
