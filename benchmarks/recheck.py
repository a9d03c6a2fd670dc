"""How long a finished run on a real S3 server takes to be found finished: nothing to do, everything to check.

A bare Prefect flow of as many flow runs and tasks that do nothing, with Prefect's own temporary server, is timed in
turns with it: what of the time is Prefect's, and how loaded the machine is. Processor seconds count both processes.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.measure import Result, command_for, cpu_seconds

_RUN = ["-m", "rloop_core", "run", "--config", "deployments/configs/smoke.yaml", "--set", "iterations=3"]
_ROUNDS = 3
_BARE_SETTINGS = {
    "PREFECT_LOGGING_LEVEL": "ERROR",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
}
Seconds = tuple[float, float]
"""Of the clock and of the processor."""


def bench() -> list[Result]:
    """Time the same command once more, start-up included; with the copies of the artifacts and without."""
    from tests.swift import swift_server

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "swift").mkdir()
        with swift_server(folder / "swift") as server:
            environment = {**os.environ, **server.environment, "PREFECT_HOME": str(folder / "home")}
            placed = ["--set", f"placement.scratch={folder / 'scratch'}", "--store", f"{server.uri}/bench"]
            command = [sys.executable, *_RUN, *placed]
            bare_command = command_for("recheck:bare_flow")
            bare_environment = {**environment, **_BARE_SETTINGS, "PREFECT_HOME": str(folder / "bare")}
            _time(command, environment)
            _time(bare_command, bare_environment)
            warm, cold, bare = [], [], []
            for _ in range(_ROUNDS):
                bare.append(_time(bare_command, bare_environment))
                warm.append(_time(command, environment))
                shutil.rmtree(folder / "scratch")
                cold.append(_time(command, environment))
    what = "a finished 3-iteration run on S3, started again"
    against = f"a bare Prefect flow {_words(bare)}; load {os.getloadavg()[0]:.1f}"
    return [
        Result(what, _medians(warm)[0], 10.0, "s", f"OpenStack Swift, start-up included; {_words(warm)}; {against}"),
        Result(f"{what}, its copies gone", _medians(cold)[0], 10.0, "s", f"all files downloaded; {_words(cold)}"),
    ]


def bare_flow() -> dict[str, Any]:
    """Run three iterations of five empty tasks; preflight and the last evaluation are in the flow around them."""
    from prefect import flow, task

    @task
    def stage(number: int) -> int:
        return number

    @flow
    def iteration(number: int) -> None:
        for each in range(5):
            stage(each)

    @flow
    def run() -> None:
        stage(0)
        for number in range(3):
            iteration(number)
        stage(1)

    run()
    return {}


def _time(command: list[str], environment: dict[str, str]) -> Seconds:
    """Return the seconds of a command, and the processor seconds of it and of its descendants."""
    started, cpu = time.monotonic(), cpu_seconds(resource.RUSAGE_CHILDREN)
    subprocess.run(command, env=environment, capture_output=True, check=True)
    return time.monotonic() - started, cpu_seconds(resource.RUSAGE_CHILDREN) - cpu


def _medians(rounds: Sequence[Seconds]) -> Seconds:
    return median(clock for clock, _ in rounds), median(cpu for _, cpu in rounds)


def _words(rounds: Sequence[Seconds]) -> str:
    clock, cpu = _medians(rounds)
    return f"{clock:.1f} s, {cpu:.1f} s of processor"
