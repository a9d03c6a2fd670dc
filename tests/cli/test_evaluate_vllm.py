"""`rloop evaluate --engine vllm` killed or interrupted (`make vllm-test`): nothing stays behind, and it goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest

from rloop_core.cli.interrupt import LINE
from tests.conftest import ROOT, command_environment, start_rloop
from tests.faults.conftest import wait_until
from tests.processes import still_running
from tests.wide_policy import widen

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed: make vllm-test"),
]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -9), (signal.SIGINT, 130)])
def test_an_evaluation_that_was_ended_leaves_no_process_and_goes_on(
    number: signal.Signals, code: int, tmp_path: Path
) -> None:
    policy, out = widen(tmp_path / "policy"), tmp_path / "out"
    words = ["evaluate", "--model", str(policy), "--problems", "reasoning_gym:chain_sum", "--limit", "20"]
    words += ["--template", "plain", "--samples", "200", "--max-tokens", "60", "--batch", "16", "--k", "1,8"]
    words += ["--engine", "vllm", "--engines", "1", "--json", "--out", str(out)]

    def shards() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in (out / "samples").glob("*.parquet")}

    command = [sys.executable, "-m", "rloop_core", *words]
    with subprocess.Popen(command, cwd=ROOT, env=command_environment(tmp_path), stdout=-1, stderr=-2) as process:
        # A terminal sends Ctrl-C to every process of the command: its engines are in sessions of their own.
        wait_until(lambda: len(shards()) >= 2, "the first batches", 300)
        below = psutil.Process(process.pid).children(recursive=True)
        engines = [process for process in below if "VLLM" in " ".join(process.cmdline())]
        assert engines
        for engine in engines:
            engine.suspend()  # it cannot come to its end meanwhile
        os.kill(process.pid, number)
        said = process.communicate(timeout=60)[0].decode()
    assert process.returncode == code
    assert not still_running(below)
    if number == signal.SIGINT:
        assert f"rloop: {LINE}" in said.splitlines()
    assert not (out / "metrics.json").exists()
    kept = shards()
    assert 2 <= len(kept) < 250
    for path in kept:
        assert pq.read_table(path).num_rows == 16

    found = json.loads(start_rloop(*words, home=tmp_path, timeout=600).stdout)
    assert (found["batches"], found["missing"]) == (250, 0)
    assert {path: shards()[path] for path in kept} == kept
    assert json.loads((out / "metrics.json").read_text()) == found
