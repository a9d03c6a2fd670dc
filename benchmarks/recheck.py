"""How long a finished run on a real S3 server takes to be found finished: nothing to do, everything to check.

Beside it, in the same minute, a bare Prefect flow of as many flow runs and tasks that do nothing, with Prefect's own
temporary server: what of the time is Prefect's, and how loaded the machine is. Processor seconds count both processes.
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

from benchmarks.line import Line

_RUN = ["-m", "rloop_core", "run", "--config", "deployments/configs/smoke.yaml", "--set", "iterations=3"]
_ROUNDS = 3

_BARE = """
from prefect import flow, task

@task
def stage(number):
    return number

@flow
def iteration(number):
    for one in range(5):
        stage(one)

@flow
def run():
    stage(0)
    for number in range(3):
        iteration(number)
    stage(1)

run()
"""
"""Three iterations of five stages; preflight and the last evaluation are in the flow around them."""

_BARE_SETTINGS = {
    "PREFECT_LOGGING_LEVEL": "ERROR",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
}


def bench() -> list[Line]:
    """Seconds of the same command once more, start-up included; with the copies of the artifacts and without."""
    from tests.swift import swift_server

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "swift").mkdir()
        with swift_server(folder / "swift") as server:
            environment = {**os.environ, **server.environment, "PREFECT_HOME": str(folder / "home")}
            command = [*_RUN, "--set", f"placement.scratch={folder / 'scratch'}", "--store", f"{server.uri}/bench"]
            bare_environment = {**environment, **_BARE_SETTINGS, "PREFECT_HOME": str(folder / "bare")}
            _measured(command, environment)
            _measured(["-c", _BARE], bare_environment)
            warm, cold, bare = [], [], []
            for _ in range(_ROUNDS):
                bare.append(_measured(["-c", _BARE], bare_environment))
                warm.append(_measured(command, environment))
                shutil.rmtree(folder / "scratch")
                cold.append(_measured(command, environment))
    what = "a finished 3-iteration run on S3, started again"
    against = f"a bare Prefect flow {_words(bare)}; load {os.getloadavg()[0]:.1f}"
    return [
        Line(what, _middle(warm)[0], 10.0, "s", f"OpenStack Swift, start-up included; {_words(warm)}; {against}"),
        Line(f"{what}, its copies gone", _middle(cold)[0], 10.0, "s", f"all files downloaded; {_words(cold)}"),
    ]


def _measured(command: list[str], environment: dict[str, str]) -> tuple[float, float]:
    """Seconds of a command, and processor seconds of it and of what it started and waited for."""
    began, before = time.monotonic(), _processor()
    subprocess.run([sys.executable, *command], env=environment, capture_output=True, check=True)
    return time.monotonic() - began, _processor() - before


def _processor() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _middle(rounds: Sequence[tuple[float, float]]) -> tuple[float, float]:
    return median(seconds for seconds, _ in rounds), median(processor for _, processor in rounds)


def _words(rounds: Sequence[tuple[float, float]]) -> str:
    seconds, processor = _middle(rounds)
    return f"{seconds:.1f} s, {processor:.1f} s of processor"
