from __future__ import annotations

import json
from pathlib import Path

import pytest

from rloop_core.config import Config
from rloop_core.errors import ConfigError
from rloop_core.plan.models import KNOWN
from rloop_core.policies import bundled_policy_path
from rloop_core.stages import preflight
from rloop_core.stages.preflight import check_memory
from rloop_core.training.settings import TrainingJob, grpo_config
from tests.conftest import small_config


def test_a_stage_that_cannot_fit_on_the_device_is_refused_with_the_setting() -> None:
    config = small_config(placement={"generation_batch": 4096, "micro_batch_rollouts": 8}, explore={"group_size": 8})
    check_memory(config, bundled_policy_path(), available=8e9)
    with pytest.raises(
        ConfigError, match=r"placement: \w+ needs about .* GiB, the device has 0\.1 free \(fix: set placement\."
    ):
        check_memory(config, bundled_policy_path(), available=1e8)


def test_fused_kernels_need_a_gpu_and_their_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(preflight, "find_spec", lambda name: None)
    preflight._check_kernels(small_config())
    with pytest.raises(ConfigError, match=r"placement.liger_kernels: needs a GPU"):
        preflight._check_kernels(small_config(placement={"liger_kernels": True}))
    on_gpu = small_config(placement={"liger_kernels": True, "device": "auto"})
    with pytest.raises(ConfigError, match=r"liger-kernel is not installed \(fix: pip install liger-kernel"):
        preflight._check_kernels(on_gpu)
    assert grpo_config(TrainingJob(on_gpu, 0, tmp_path, tmp_path, "cpu")).use_liger_kernel


def test_memory_is_counted_on_as_many_devices_as_there_are_processes(tmp_path: Path) -> None:
    """States that are shared out among eight fit where those of one do not."""
    policy = tmp_path / "policy"
    policy.mkdir()
    (policy / "config.json").write_text(json.dumps(KNOWN["Qwen/Qwen2.5-Math-1.5B"]))
    settings = {"micro_batch_rollouts": 1, "micro_batch_trajectories": 1, "generation_batch": 8}
    explore = {"problems_per_step": 8, "group_size": 4, "mini_batch_rollouts": 32}

    def config(processes: int) -> Config:
        placement = {**settings, "processes": processes, "gradient_checkpointing": True}
        return small_config(
            policy={"dtype": "bfloat16"}, explore=explore, rft={"batch_trajectories": 8}, placement=placement
        )

    check_memory(config(8), policy, available=12e9)
    with pytest.raises(ConfigError, match=r"explore needs about .* \(fix: .*infra/accelerate/zero2-offload.yaml"):
        check_memory(config(1), policy, available=12e9)
