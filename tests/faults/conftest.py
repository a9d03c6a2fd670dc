"""One undisturbed run to compare with, and the means to disturb others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.conftest import ROOT, SMOKE, command_environment, manifest_digests

SMOKE_RUN = ["run", "--config", str(SMOKE), "--no-report"]


@pytest.fixture(scope="session")
def undisturbed(finished_smoke: Path) -> dict[str, str]:
    """Digests of the smoke run when nothing goes wrong."""
    return manifest_digests(finished_smoke / "store", "smoke")


class Disturbed:
    """A smoke run in a process of its own, on a store that outlives it.

    `options` are more of its command's, `environment` is added to its own.
    """

    def __init__(self, folder: Path, *options: str) -> None:
        folder.mkdir(exist_ok=True)
        self.options = options
        self.environment: dict[str, str] = {}
        self.store = folder / "store"
        self.home = folder / "home"
        self.log = folder / "log.txt"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> psutil.Process:
        """Start, or start again, the same command."""
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "rloop_core", *SMOKE_RUN, "--store", str(self.store), *self.options],
                cwd=ROOT,
                env=command_environment(self.home) | self.environment,
                stdout=log,
                stderr=log,
            )
        return psutil.Process(self.process.pid)

    def kill(self) -> list[psutil.Process]:
        """SIGKILL the command alone; returns the processes that were below it."""
        assert self.process is not None
        below = psutil.Process(self.process.pid).children(recursive=True)
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()
        return below

    def scratch(self, stage: str) -> Path:
        """Where a stage keeps its unfinished work: `<iteration>/<stage>`."""
        return self.store / f".scratch-{os.geteuid()}" / "smoke" / stage

    def manifests(self) -> dict[str, int]:
        """When each manifest was written."""
        found = (self.store / "smoke").rglob("manifest.json")
        return {str(path.relative_to(self.store)): path.stat().st_mtime_ns for path in found}


@pytest.fixture
def disturbed(tmp_path: Path) -> Iterator[Disturbed]:
    run = Disturbed(tmp_path)
    yield run
    if run.process and run.process.poll() is None:
        for process in [*psutil.Process(run.process.pid).children(recursive=True), run.process]:
            _kill(process.pid)
        run.process.wait()


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def wait_until(condition: Callable[[], object], what: str, timeout: float = 180, every: float = 0.01) -> None:
    """Poll until a condition holds."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"waited {timeout} s for {what}"
        time.sleep(every)
