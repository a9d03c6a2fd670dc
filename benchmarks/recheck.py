"""How long a finished run on a real S3 server takes to be found finished: nothing to do, everything to check.

A bare Prefect flow of as many flow runs and tasks that do nothing, with Prefect's own temporary server, is timed in
turns with it: what of the time is Prefect's, and how loaded the machine is. Processor seconds count both processes.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.measure import Result, command_for, run_timed

_RUN = ["-m", "rloop_core", "run", "--config", "deployments/configs/smoke.yaml", "--set", "iterations=3"]
_ROUNDS = 3
_BARE_SETTINGS = {
    "PREFECT_LOGGING_LEVEL": "ERROR",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
}
Rounds = Sequence[tuple[float, float]]
"""Seconds of the clock and of the processor."""


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
            run_timed(command, environment)
            run_timed(bare_command, bare_environment)
            warm, cold, bare = [], [], []
            for _ in range(_ROUNDS):
                bare.append(run_timed(bare_command, bare_environment))
                warm.append(run_timed(command, environment))
                shutil.rmtree(folder / "scratch")
                cold.append(run_timed(command, environment))
    what = "a finished 3-iteration run on S3, started again"
    details = f"OpenStack Swift, start-up included; a bare Prefect flow {_words(bare)}; load {os.getloadavg()[0]:.1f}"
    return [_result(what, warm, details), _result(f"{what}, its copies gone", cold, "all files downloaded")]


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


def _result(what: str, rounds: Rounds, details: str) -> Result:
    return Result(what, median(clock for clock, _ in rounds), 10.0, "s", f"{_words(rounds)}; {details}")


def _words(rounds: Rounds) -> str:
    clock, cpu = median(clock for clock, _ in rounds), median(cpu for _, cpu in rounds)
    return f"{clock:.1f} s, {cpu:.1f} s of processor"
