"""A further machine of a run, played by a process tree of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import yaml

from rloop_core.config import Config
from tests.conftest import ROOT
from tests.processes import still_running


@contextmanager
def rloop_node(config: Config, folder: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """A further machine; at the end, nothing of it is left."""
    file = folder / "config.yaml"
    file.write_text(yaml.safe_dump(config.model_dump(mode="json")))
    command = [sys.executable, "-m", "rloop_core", "node", "--config", str(file), *options]
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        yield process
    finally:
        below = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        process.terminate()
        assert process.stdout
        print(process.stdout.read())
        process.wait(120)
        assert not still_running(below)
