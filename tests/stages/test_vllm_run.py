"""The smoke config with vLLM in harvest and evaluate (`make vllm-test`): the same record as from the other engine."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from rloop_core.trajectories import SNAPSHOT_RANK
from rloop_core.trajectories.schema import TRAJECTORY_SCHEMA
from tests.conftest import SMOKE, start_rloop
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
        assert (one["versions"].get("drawn_by") or "").startswith(drawer) if drew else "drawn_by" not in one["versions"]
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
