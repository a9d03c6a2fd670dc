"""A stage whose engines are processes: killed outright, it leaves none of them, and ends with what one engine gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import pytest

from rloop_core.errors import StageCrashed
from rloop_core.stages.runner import StageRunner
from rloop_core.store import BASE_ITERATION, Manifest, Store
from tests.conftest import small_config
from tests.processes import still_running

SUMS = {"source": "reasoning_gym:chain_sum", "size": 10, "params": {"min_terms": 2, "max_terms": 3, "max_digits": 1}}


def engines() -> list[psutil.Process]:
    below = psutil.Process().children(recursive=True)
    return [one for one in below if "rloop_core.rollout.engine_process" in " ".join(one.cmdline())]


@pytest.mark.long
def test_a_killed_stage_leaves_no_engine_and_its_artifact_is_the_one_of_a_single_engine(tmp_path: Path) -> None:
    def evaluate(count: int, listen: Any = lambda *_: None) -> Manifest:
        config = small_config(
            evaluate={"samples": 40, "k": [1, 4], "sets": [{**SUMS, "name": "plain", "seed": 11}]},
            placement={"generation_batch": 8, "engines": count},
        )
        store = Store(str(tmp_path / str(count)))
        return StageRunner(config, store, None, listen).ensure("evaluate", BASE_ITERATION).manifest

    below: list[psutil.Process] = []

    def kill(stage: str, iteration: int, event: dict[str, Any]) -> None:
        if event["kind"] == "step" and not below:
            below.extend(engines())
            stage_process = below[0].parent()
            assert len(below) == 2 and stage_process is not None and stage_process == below[1].parent()
            stage_process.kill()

    with pytest.raises(StageCrashed, match="ended without a result"):
        evaluate(2, kill)
    assert below and not still_running(below)
    scratch = [path.name for path in (tmp_path / "2").rglob("samples/**/*.parquet")]
    assert 1 <= len(scratch) < 50
    whole = evaluate(2)
    assert not engines()
    assert whole.digest == evaluate(1).digest and whole.counts == {"plain": {"problems": 10, "samples": 40}}
