"""`rloop run` and `rloop evaluate` with vLLM (`make vllm-test`): the other engine's record, and no process left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from rloop_core.cli.interrupt import LINE
from rloop_core.trajectories import SNAPSHOT_RANK
from rloop_core.trajectories.schema import TRAJECTORY_SCHEMA
from tests.conftest import ROOT, SMOKE, command_environment, start_rloop
from tests.faults.conftest import wait_until
from tests.processes import still_running
from tests.wide_policy import widen

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed: make vllm-test"),
]
SET = ["iterations=1", "explore.snapshot_every=3", "harvest.snapshot_samples=4", "placement.parallel_evaluation=false"]


def smoke(folder: Path, policy: Path, engine: str) -> Path:
    """A finished run's folder in its store."""
    chosen = [*SET, f"policy.path={policy}", f"placement.engine={engine}"]
    options = [part for one in chosen for part in ("--set", one)]
    store = folder / engine
    start_rloop("run", "--config", str(SMOKE), *options, "--store", str(store), home=folder / "home", timeout=900)
    return store / "smoke"


def test_evaluate_and_harvest_of_the_smoke_run_on_vllm(tmp_path: Path) -> None:
    policy = widen(tmp_path / "policy")
    runs = [smoke(tmp_path, policy, engine) for engine in ("vllm", "transformers")]
    sampled = {"evaluate": ("set-00", 8 * 4), "harvest": ("trajectories", 24 * 4)}
    stages = [folder.parent.relative_to(runs[1]) for folder in sorted(runs[1].rglob("manifest.json"))]
    assert [stage.name for stage in stages if stage.name in sampled] == ["evaluate", "evaluate", "harvest"]
    for stage in stages:
        one, other = (json.loads((run / stage / "manifest.json").read_text()) for run in runs)
        assert one["counts"].keys() == other["counts"].keys() and one["metrics"].keys() == other["metrics"].keys()
        engine = (one["versions"].get("sampled_by") or "").partition(" ")[0]
        assert engine == {"explore": "transformers"}.get(stage.name, "vllm" if stage.name in sampled else "")
        if stage.name == "explore":
            assert one["digest"] == other["digest"], "the engine of the other stages is none of its business"
        if stage.name == "harvest":
            assert one["fingerprint"] == other["fingerprint"], "where samples are drawn is placement"
        if stage.name in sampled:
            folder, count = sampled[stage.name]
            first, second = (rows(run / stage / folder) for run in runs)
            assert first.num_rows == second.num_rows == count
            assert_same_kind_of_record(first, second)


def rows(folder: Path) -> pa.Table:
    """What the stage itself has sampled."""
    table = pa.concat_tables([pq.read_table(path) for path in sorted(folder.glob("*.parquet"))])
    return table.filter(pc.greater_equal(table["rank"], SNAPSHOT_RANK if folder.name == "trajectories" else 0))


def assert_same_kind_of_record(first: pa.Table, second: pa.Table) -> None:
    """The same prompts and golds, and every column as full; what was drawn may differ."""
    assert first.schema.equals(second.schema) and first.schema.names == TRAJECTORY_SCHEMA.names
    for name in ("run", "iteration", "step", "attempt", "group_id", "sample", "problem_id", "prompt", "gold", "kept"):
        key = [("group_id", "ascending"), ("sample", "ascending")]
        assert first.sort_by(key)[name].to_pylist() == second.sort_by(key)[name].to_pylist(), name
    for name in {*first.schema.names} - {"answer"}:
        assert first[name].null_count == second[name].null_count, name
    for row in (*first.to_pylist(), *second.to_pylist()):
        assert row["logprob_sum"] < 0 and row["length"] == len(row["completion_ids"])
        assert row["finished"] == (row["completion_ids"][-1] == 416)
        assert (row["verdict"] == "truncated") == (not row["finished"])
        assert row["reward"] == float(row["verdict"] == "correct")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -9), (signal.SIGINT, 130)])
def test_an_evaluation_that_was_ended_leaves_no_process_and_goes_on(
    number: signal.Signals, code: int, tmp_path: Path
) -> None:
    policy, out = widen(tmp_path / "policy"), tmp_path / "out"
    words = ["evaluate", "--model", str(policy), "--problems", "reasoning_gym:chain_sum", "--limit", "20"]
    words += ["--set", "prompt.template=plain", "--samples", "200", "--max-tokens", "60", "--k", "1,8"]
    words += ["--set", "placement.generation_batch=16"]
    words += ["--engine", "vllm", "--set", "placement.engines=1", "--json", "--out", str(out)]

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
