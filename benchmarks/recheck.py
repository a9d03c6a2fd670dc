"""How long a finished run on a real S3 server takes to be found finished: nothing to do, everything to check."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.line import Line

_RUN = ["-m", "rloop_core", "run", "--config", "deployments/configs/smoke.yaml", "--set", "iterations=3"]


def bench() -> list[Line]:
    """Seconds of the same command once more, start-up included; with the copies of the artifacts and without."""
    from tests.swift import swift_server

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "swift").mkdir()
        with swift_server(folder / "swift") as server:
            environment = {**os.environ, **server.environment, "PREFECT_HOME": str(folder / "home")}
            command = [*_RUN, "--set", f"placement.scratch={folder / 'scratch'}", "--store", f"{server.uri}/bench"]
            _seconds(command, environment)
            warm = _seconds(command, environment)
            shutil.rmtree(folder / "scratch")
            cold = _seconds(command, environment)
    what = "a finished 3-iteration run on S3, started again"
    return [
        Line(what, warm, 10.0, "s", "OpenStack Swift, start-up included"),
        Line(f"{what}, its copies gone", cold, 10.0, "s", "every file downloaded and checked"),
    ]


def _seconds(command: list[str], environment: dict[str, str]) -> float:
    began = time.monotonic()
    subprocess.run([sys.executable, *command], env=environment, capture_output=True, check=True)
    return time.monotonic() - began
