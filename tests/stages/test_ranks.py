"""A stage in two processes: what they record together, how they end, and that they go on exactly where they were."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest
from safetensors.torch import load_file

from rloop_core.config import Config
from rloop_core.dapo.explore import ExploreJob, explore
from rloop_core.errors import ConfigError, StageCrashed, StageError
from rloop_core.organism import bundled_policy_path
from rloop_core.rft import RFTJob, finetune
from rloop_core.seeds import derive_seed
from rloop_core.stages.job import StageOutcome
from rloop_core.stages.process import run_in_process
from rloop_core.stages.runner import StageRunner
from rloop_core.store import Lease, Store
from rloop_core.trajectories.layout import EXPERTS_FILE
from rloop_core.verifier import Verifier
from tests.conftest import ROOT, encoded, small_config
from tests.machines.node import rloop_node

Groups = dict[int, dict[str, list[int]]]
_SAMPLING = {"enabled": False, "when_exhausted": "update-with-fewer"}


def _config(store: Path, processes: int, **placement: Any) -> Config:
    return small_config(
        name="ranks",
        explore={"steps": 3, "dynamic_sampling": _SAMPLING},
        filter={"threshold": 0.9},
        rft={"batch_trajectories": 8, "learning_rate": 1e-4},
        placement={"store": str(store), "processes": processes, **placement},
    )


def _ensure(
    config: Config, *stages: str, listen: Callable[..., None] = lambda *event: None, stall: float | None = None
) -> list[str]:
    """Digests of stages, computed as a run computes them."""

    def launch(*given: Any, **settings: Any) -> StageOutcome:
        return run_in_process(*given, **{**settings, "stall_seconds": stall})

    store = Store(config.placement.store)
    with Lease(store, config.name) as lease:
        runner = StageRunner(config, store, lease, listen, launch)
        return [runner.ensure(stage, 0).manifest.digest for stage in stages]


def _groups(folder: Path) -> Groups:
    """RL step -> problem -> its samples."""
    found: Groups = {}
    for path in sorted(folder.glob("*.parquet")):
        for row in pq.read_table(path, columns=["step", "problem_id", "sample"]).to_pylist():
            found.setdefault(row["step"], {}).setdefault(row["problem_id"], []).append(row["sample"])
    return {step: {name: sorted(samples) for name, samples in groups.items()} for step, groups in found.items()}


def _rank(number: int) -> psutil.Process:
    """The process of a rank below this one: torchrun's agent redirects its output to a file of its own."""
    for process in psutil.Process().children(recursive=True):
        try:
            if re.search(rf"/ranks/logs/.*/{number}/stdout.log$", os.readlink(f"/proc/{process.pid}/fd/1")):
                return process
        except OSError:
            continue
    raise AssertionError(f"rank {number} does not run")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A store with an iteration of two processes, and the digests of explore, harvest, filter and rft."""
    store = tmp_path_factory.mktemp("two")
    return store, _ensure(_config(store, 2), "explore", "harvest", "filter", "rft")


@pytest.mark.timeout(600)
def test_two_processes_record_the_groups_of_one(
    undisturbed: tuple[Path, list[str]], make_job: Callable[..., ExploreJob], verifier: Verifier
) -> None:
    config = _config(Path("unused"), 1)
    one = replace(make_job(config), seed=derive_seed(config.seed, "explore", 0))
    explore(one, encoded(config), verifier, lambda row: None)
    together = _groups(undisturbed[0] / "ranks/iteration-000/explore/shards")
    assert together == _groups(one.work / "shards")
    assert all(samples == list(range(4)) for groups in together.values() for samples in groups.values())
    assert [len(groups) for groups in together.values()] == [4, 4, 4]


@pytest.mark.timeout(600)
def test_fine_tuning_by_two_processes_differs_from_one_by_rounding_alone(
    undisturbed: tuple[Path, list[str]], tmp_path: Path
) -> None:
    iteration = undisturbed[0] / "ranks/iteration-000"
    table = pq.read_table(iteration / "filter" / EXPERTS_FILE, columns=["prompt_ids", "completion_ids"])
    config = _config(Path("unused"), 1)
    assert table.num_rows % config.rft.batch_trajectories, "the last batch is not full"
    job = RFTJob(config, derive_seed(config.seed, "rft", 0), bundled_policy_path(), tmp_path, "cpu")
    finetune(job, table["prompt_ids"].to_pylist(), table["completion_ids"].to_pylist(), lambda row: None)
    start, one, two = (
        load_file(folder / "model.safetensors")
        for folder in (bundled_policy_path(), tmp_path / "policy", iteration / "rft/policy")
    )
    moved = max(float((one[name] - start[name]).abs().max()) for name in start)
    apart = max(float((one[name] - two[name]).abs().max()) for name in start)
    assert moved > 1e-4 and apart < 0.02 * moved


@pytest.mark.timeout(600)
def test_two_machines_of_one_process_explore_as_one_of_two(undisturbed: tuple[Path, list[str]], tmp_path: Path) -> None:
    shared = {"machines": 2, "scratch": str(tmp_path / "scratch"), "machines_address": "127.0.0.1"}
    config = _config(tmp_path, 2, **shared)
    with rloop_node(config, tmp_path):
        assert _ensure(config, "explore") == undisturbed[1][:1]


@pytest.mark.timeout(600)
def test_ranks_that_die_or_hang_end_the_stage_and_are_named_and_the_next_start_ends_as_if_nothing_had_been(
    undisturbed: tuple[Path, list[str]], tmp_path: Path
) -> None:
    def after_a_step(send: signal.Signals) -> Callable[..., None]:
        def listen(stage: str, iteration: int, event: dict[str, Any]) -> None:
            if event["kind"] == "step" and event["done"] == 2:  # there is a checkpoint of the first
                os.kill(_rank(1).pid, send)

        return listen

    config = _config(tmp_path, 2)
    with pytest.raises(
        StageCrashed, match=r"rank 1 ended without a result \(SIGKILL\): killed by somebody.* if it is memory, .*lower "
    ):
        _ensure(config, "explore", listen=after_a_step(signal.SIGKILL))
    silent = r"made no progress for 30 s .*; rank 1 has shown no sign of life for \d+ s .*, last in .* of .*rloop_core/"
    with pytest.raises(StageCrashed, match=silent):
        _ensure(config, "explore", listen=after_a_step(signal.SIGSTOP), stall=30)
    assert not [one for one in psutil.Process().children(recursive=True) if one.status() == psutil.STATUS_STOPPED]
    with pytest.raises(StageError, match=r"placement.processes: .*begun with 2 processes.*with 1 \(fix: set it back"):
        _ensure(_config(tmp_path, 1), "explore")
    work = next((tmp_path / ".scratch/ranks/iteration-000/explore").iterdir())
    assert "[rank 1] " in (work / "stage.log").read_text()
    assert _ensure(config, "explore") == undisturbed[1][:1]


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_rank_that_hangs_ends_the_stage_when_an_exchange_has_waited_long_enough(
    undisturbed: tuple[Path, list[str]], tmp_path: Path
) -> None:
    def stop(stage: str, iteration: int, event: dict[str, Any]) -> None:
        if event["kind"] == "step" and event["done"] == 2:
            os.kill(_rank(1).pid, signal.SIGSTOP)

    impatient = _config(tmp_path, 2, collective_timeout_minutes=0.2)
    with pytest.raises(StageCrashed, match=r"rank 0 lost another: rank 1 has shown no sign of life for \d+ s"):
        _ensure(impatient, "explore", listen=stop, stall=300)
    assert not [one for one in psutil.Process().children(recursive=True) if one.status() == psutil.STATUS_STOPPED]
    assert _ensure(_config(tmp_path, 2), "explore") == undisturbed[1][:1]


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("rank", ["0", "1"])
def test_a_full_device_ends_the_stage_with_what_to_lower_and_lowered_it_goes_on(rank: str, tmp_path: Path) -> None:
    config = _config(tmp_path, 2 if rank == "1" else 1)
    done = subprocess.run(
        [sys.executable, "-m", "tests.stages.full_device"],
        input=json.dumps({"config": config.model_dump(mode="json"), "rank": rank}),
        env={**os.environ, "FULL_DEVICE": str(tmp_path / "full")},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=400,
    )
    told = json.loads(done.stdout.splitlines()[-1]) if done.stdout else pytest.fail(done.stderr)
    named = "rank 1: out of memory: CUDA out of memory" if rank == "1" else "out of memory: CUDA out of memory"
    assert named in told["error"] and told["kind"] == "StageError", "trying the same again would not help"
    assert "(fix: lower placement.micro_batch_rollouts (now the whole mini-batch), placement.gen" in told["error"]
    assert told["steps-None"] == [1, 2] and told["steps-2"] == [3], "nothing that was checkpointed is computed again"


@pytest.mark.long
@pytest.mark.timeout(600)
def test_accelerates_launcher_and_its_config_give_the_same(undisturbed: tuple[Path, list[str]], tmp_path: Path) -> None:
    missing = _config(tmp_path, 2, accelerate_config="nowhere.yaml")
    with pytest.raises(ConfigError, match=r"placement.accelerate_config: nowhere.yaml is not there"):
        _ensure(missing, "explore")
    steps: list[int] = []
    launched = _config(tmp_path, 2, accelerate_config=str(ROOT / "infra/accelerate/ddp.yaml"))
    digests = _ensure(launched, "explore", listen=lambda stage, iteration, event: steps.append(event.get("done", 0)))
    assert digests == undisturbed[1][:1]
    assert [step for step in steps if step] == [1, 2, 3]


@pytest.mark.timeout(600)
def test_one_process_of_accelerates_launcher_computes_what_one_of_ours_does(tmp_path: Path) -> None:
    """As `infra/accelerate/zero3-offload.yaml` needs it on one GPU, where there is no other way to share states out."""
    launched = {"accelerate_config": str(ROOT / "infra/accelerate/ddp.yaml")}
    plain = _ensure(_config(tmp_path / "plain", 1), "explore")
    assert _ensure(_config(tmp_path / "launched", 1, **launched), "explore") == plain
