"""Adapters trained by two processes, and by a run that is killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from rloop_core.errors import StageCrashed
from tests.conftest import manifest_digests
from tests.faults.conftest import Disturbed, wait_until
from tests.processes import still_running
from tests.stages.running import ensure, groups_of, in_step, rank, ranks_config

pytestmark = pytest.mark.process

LORA = {"rank": 4, "alpha": 8.0, "dropout": 0.1}
STAGES = ("explore", "harvest", "filter", "rft")


@pytest.mark.long
@pytest.mark.timeout(600)
def test_two_processes_train_adapters_on_the_groups_of_whole_weights_and_a_killed_rank_changes_nothing(
    tmp_path: Path,
) -> None:
    pytest.importorskip("peft")
    config = ranks_config(tmp_path / "undisturbed", 2, LORA)
    undisturbed = ensure(config, *STAGES)
    together = groups_of(tmp_path / "undisturbed/ranks/iteration-000/explore/shards")
    assert [len(groups) for groups in together.values()] == [4, 4, 4]
    assert all(samples == list(range(4)) for groups in together.values() for samples in groups.values())
    killed = ranks_config(tmp_path / "killed", 2, LORA)
    steps: list[int] = []
    with pytest.raises(StageCrashed, match="rank 1 ended without a result"):
        ensure(killed, "explore", on_event=in_step(3, lambda: os.kill(rank(1).pid, signal.SIGKILL)))
    again = ensure(killed, *STAGES, on_event=lambda stage, i, event: steps.append(event.get("done", 0)))
    assert again == undisturbed
    assert next(step for step in steps if step) > 1, "it goes on at a checkpoint"


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_run_of_adapters_killed_in_the_middle_of_fine_tuning_ends_with_the_same_digests(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    options = ["--set", "iterations=1", "--set", "evaluate.sets=[]", "--set", "filter.threshold=0.9"]
    options += ["--set", "lora.rank=4", "--set", "lora.dropout=0.1", "--set", "rft.epochs=4"]
    whole, disturbed = Disturbed(tmp_path / "whole", *options), Disturbed(tmp_path / "disturbed", *options)
    whole.start()
    assert whole.finish(400) == 0, whole.log.read_text()
    process = disturbed.start()
    wait_until(lambda: any(disturbed.scratch("iteration-000/rft").rglob("stage.log")), "fine-tuning", 300)
    below = disturbed.kill()
    assert not still_running([process, *below])
    assert not (disturbed.store / "smoke/iteration-000/rft/manifest.json").exists(), "killed in the middle"
    kept = disturbed.manifests()
    disturbed.start()
    assert disturbed.finish(400) == 0, disturbed.log.read_text()
    assert disturbed.manifests().items() >= kept.items()
    assert manifest_digests(disturbed.store, "smoke") == manifest_digests(whole.store, "smoke")
