"""Stages that sample with vLLM (`make vllm-test`): the same record as from the other engine, and no process left."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from rloop_core.errors import StageCrashed
from rloop_core.stages.runner import StageRunner
from rloop_core.store import BASE_ITERATION, Manifest, Store
from rloop_core.trajectories import SNAPSHOT_RANK
from rloop_core.trajectories.schema import TRAJECTORY_SCHEMA
from tests.conftest import SMOKE, small_config, start_rloop
from tests.processes import still_running
from tests.wide_policy import widen

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed: make vllm-test"),
]
SET = ["iterations=1", "explore.snapshot_every=3", "harvest.snapshot_samples=4", "placement.parallel_evaluation=false"]
SUMS = {"source": "reasoning_gym:chain_sum", "size": 10, "params": {"min_terms": 2, "max_terms": 3, "max_digits": 1}}


def smoke(folder: Path, policy: Path, engine: str) -> Path:
    """A finished run's folder in its store."""
    chosen = [*SET, f"policy.path={policy}", f"placement.engine={engine}"]
    options = [part for one in chosen for part in ("--set", one)]
    store = folder / engine
    start_rloop("run", "--config", str(SMOKE), *options, "--store", str(store), home=folder / "home", timeout=900)
    return store / "smoke"


def manifest(run: Path, stage: str) -> dict[str, Any]:
    return json.loads((run / stage / "manifest.json").read_text())  # type: ignore[no-any-return]


def rows(run: Path, stage: str, pattern: str) -> pa.Table:
    return pa.concat_tables([pq.read_table(path) for path in sorted((run / stage).glob(pattern))])


def test_evaluate_and_harvest_of_the_smoke_run_on_vllm(tmp_path: Path) -> None:
    policy = widen(tmp_path / "policy")
    theirs, ours = (smoke(tmp_path, policy, engine) for engine in ("vllm", "transformers"))
    stages = [folder.parent.relative_to(ours).as_posix() for folder in sorted(ours.rglob("manifest.json"))]
    assert len([stage for stage in stages if stage.endswith(("evaluate", "harvest"))]) == 3
    for stage in stages:
        one, other = manifest(theirs, stage), manifest(ours, stage)
        assert one["counts"].keys() == other["counts"].keys() and one["metrics"].keys() == other["metrics"].keys()
        drawer = f"{'transformers' if stage.endswith('explore') else 'vllm'} "
        drew = stage.endswith(("explore", "harvest", "evaluate"))
        assert (
            (one["versions"].get("sampled_by") or "").startswith(drawer)
            if drew
            else "sampled_by" not in one["versions"]
        )
        if stage.endswith("explore"):
            assert one["digest"] == other["digest"], "the engine of the other stages is none of its business"
        if stage.endswith("harvest"):
            assert one["fingerprint"] == other["fingerprint"], "where samples are drawn is placement"
    for stage in (one for one in stages if one.endswith("evaluate")):
        first, second = (rows(run, stage, "set-00/*.parquet") for run in (theirs, ours))
        assert first.schema.equals(second.schema) and first.schema.names == TRAJECTORY_SCHEMA.names
        assert first.num_rows == second.num_rows == 8 * 4
        assert_same_kind_of_record(first, second)
    harvest = next(stage for stage in stages if stage.endswith("harvest"))
    first, second = (rows(run, harvest, "trajectories/*.parquet") for run in (theirs, ours))
    first, second = (table.filter(pc.greater_equal(table["rank"], SNAPSHOT_RANK)) for table in (first, second))
    assert first.num_rows == second.num_rows == 24 * 4
    assert_same_kind_of_record(first, second)


def assert_same_kind_of_record(first: pa.Table, second: pa.Table) -> None:
    """The same prompts and golds, and every column as full; what was drawn may differ."""
    for name in ("run", "iteration", "step", "attempt", "group_id", "sample", "problem_id", "prompt", "gold", "kept"):
        key = [("group_id", "ascending"), ("sample", "ascending")]
        assert first.sort_by(key)[name].to_pylist() == second.sort_by(key)[name].to_pylist(), name
    for name in first.schema.names:
        if name != "answer":
            assert first[name].null_count == second[name].null_count, name
    for table in (first, second):
        assert all(value < 0 for value in table["logprob_sum"].to_pylist())
        for row in table.to_pylist():
            assert row["length"] == len(row["completion_ids"])
            assert row["finished"] == (row["completion_ids"][-1] == 416)
            assert (row["verdict"] == "truncated") == (not row["finished"])
            assert row["reward"] == float(row["verdict"] == "correct")


def engines() -> list[psutil.Process]:
    below = psutil.Process().children(recursive=True)
    return [one for one in below if "VLLM::EngineCore" in " ".join(one.cmdline())]


def test_a_killed_stage_leaves_no_replica_and_goes_on_with_what_is_missing(tmp_path: Path) -> None:
    policy = widen(tmp_path / "policy")

    def evaluate(on_event: Any = lambda *_: None) -> Manifest:
        config = small_config(
            policy={"path": str(policy)},
            evaluate={"samples": 40, "k": [1, 4], "sets": [{**SUMS, "name": "plain", "seed": 11}]},
            placement={"generation_batch": 8, "engine": "vllm", "engines": 2},
        )
        store = Store(str(tmp_path / "store"))
        return StageRunner(config, store, None, on_event).ensure("evaluate", BASE_ITERATION).manifest

    below: list[psutil.Process] = []

    def kill(stage: str, iteration: int, event: dict[str, Any]) -> None:
        if event["kind"] == "step" and not below:
            below.extend(engines())
            stage_process = below[0].parent()
            assert len(below) == 2 and stage_process is not None and stage_process == below[1].parent()
            stage_process.kill()

    with pytest.raises(StageCrashed, match="ended without a result"):
        evaluate(kill)
    assert below and not still_running(below)
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "store").rglob("samples/**/*.parquet")}
    assert 1 <= len(kept) < 50
    again: list[float] = []
    whole = evaluate(lambda stage, iteration, event: again.append(event["done"]) if event["kind"] == "step" else None)
    assert not engines()
    assert again[0] >= len(kept) / 50 and whole.counts == {"plain": {"problems": 10, "samples": 40}}
