"""A stage that draws with vLLM (`make vllm-test`): killed outright, it leaves no process, and ends with the same."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pytest

from rloop_core.errors import StageCrashed
from rloop_core.stages.runner import StageRunner
from rloop_core.store import BASE_ITERATION, Manifest, Store
from tests.conftest import small_config
from tests.processes import still_running
from tests.wide_policy import widen

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed: make vllm-test"),
]

SUMS = {"source": "reasoning_gym:chain_sum", "size": 10, "params": {"min_terms": 2, "max_terms": 3, "max_digits": 1}}


def engines() -> list[psutil.Process]:
    below = psutil.Process().children(recursive=True)
    return [one for one in below if "VLLM::EngineCore" in " ".join(one.cmdline())]


def test_a_killed_stage_leaves_no_replica_and_goes_on_with_what_is_missing(tmp_path: Path) -> None:
    policy = widen(tmp_path / "policy")

    def evaluate(listen: Any = lambda *_: None) -> Manifest:
        config = small_config(
            policy={"path": str(policy)},
            evaluate={"samples": 40, "k": [1, 4], "sets": [{**SUMS, "name": "plain", "seed": 11}]},
            placement={"generation_batch": 8, "engine": "vllm", "engines": 2},
        )
        store = Store(str(tmp_path / "store"))
        return StageRunner(config, store, None, listen).ensure("evaluate", BASE_ITERATION).manifest

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
