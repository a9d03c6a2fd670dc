"""The accelerate configs, read by accelerate's own launcher."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

import pytest
import yaml

from rloop_core.errors import ConfigError
from rloop_core.stages.job import Share, StageJob
from rloop_core.stages.ranks import accelerate_environment
from tests.conftest import ROOT, small_config

CONFIGS = sorted((ROOT / "infra/accelerate").glob("*.yaml"))
KINDS = {"ddp": "multi_gpu", "fsdp": "use_fsdp"} | dict.fromkeys(
    ("zero2", "zero2-offload", "zero3", "zero3-offload"), "use_deepspeed"
)


def _parsed(path: Path) -> Any:
    from accelerate.commands.launch import launch_command_parser

    return launch_command_parser().parse_args(["--config_file", str(path), "script.py"])


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_the_launcher_reads_the_kind_of_sharding(path: Path) -> None:
    from accelerate.commands.launch import _validate_launch_command

    args, _, _ = _validate_launch_command(_parsed(path))
    assert [kind for kind in sorted(set(KINDS.values())) if getattr(args, kind)] == [KINDS[path.stem]]
    processes = 1 if path.stem == "zero2-offload" else 8
    assert (args.mixed_precision, args.num_processes, args.num_machines) == ("bf16", processes, 1)
    if "zero" in path.stem:
        assert args.zero_stage == int(path.stem[4])
        assert args.offload_param_device == ("cpu" if path.stem == "zero3-offload" else "none")
        assert args.offload_optimizer_device == ("cpu" if "offload" in path.stem else "none")


@pytest.mark.process
@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_the_ranks_get_the_files_sharding_and_the_runs_precision(path: Path) -> None:
    sizes = {"problems_per_step": 16, "mini_batch_rollouts": 16}
    placement = {"machines": 2, "processes": 16, "scratch": "/shared", "accelerate_config": str(path)}
    config = small_config(explore=sizes, rft={"batch_trajectories": 16}, placement=placement)
    job = StageJob("explore", "r", 0, config, "memory://", (), "/work", "/cache", 0, Share(1, 2, "127.0.0.1:1"))
    environment = accelerate_environment(job)
    assert environment["ACCELERATE_MIXED_PRECISION"] == "no"
    assert (environment.get("ACCELERATE_USE_FSDP") == "true") == (path.stem == "fsdp")
    zero = environment.get("ACCELERATE_DEEPSPEED_ZERO_STAGE")
    assert zero == (path.stem[4] if "zero" in path.stem else None)
    if zero:
        assert "zero_stage" in environment["ACCELERATE_CONFIG_DS_FIELDS"]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_the_launcher_knows_every_setting(path: Path) -> None:
    """The launcher ignores unknown settings silently."""
    from accelerate.commands.config.config_args import load_config_from_file

    load_config_from_file(str(path))  # refuses unknown settings at the top
    content = yaml.safe_load(path.read_text())
    known = vars(_parsed(path))
    for section in ("deepspeed_config", "fsdp_config"):
        assert set(content.get(section, {})) <= set(known)


def test_fsdps_settings_make_a_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    from accelerate.commands.launch import _validate_launch_command
    from accelerate.utils import FullyShardedDataParallelPlugin
    from accelerate.utils.launch import prepare_multi_gpu_env

    args, _, _ = _validate_launch_command(_parsed(ROOT / "infra/accelerate/fsdp.yaml"))
    for name, value in prepare_multi_gpu_env(args).items():
        if name.startswith(("ACCELERATE_", "FSDP_")):
            monkeypatch.setenv(name, value)
    plugin = FullyShardedDataParallelPlugin()
    assert (plugin.fsdp_version, plugin.reshard_after_forward) == (2, True)


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if kind == "use_deepspeed"])
def test_deepspeeds_settings_make_a_plugin(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from accelerate.commands.launch import _validate_launch_command
    from accelerate.utils import DeepSpeedPlugin
    from accelerate.utils.launch import prepare_deepspeed_cmd_env

    args, _, _ = _validate_launch_command(_parsed(ROOT / f"infra/accelerate/{name}.yaml"))
    args.deepspeed_fields_from_accelerate_config = ",".join(
        yaml.safe_load((ROOT / f"infra/accelerate/{name}.yaml").read_text())["deepspeed_config"]
    )
    for key, value in prepare_deepspeed_cmd_env(args)[1].items():
        if key.startswith("ACCELERATE_"):
            monkeypatch.setenv(key, value)
    plugin = DeepSpeedPlugin()
    content = plugin.deepspeed_config
    zero = content["zero_optimization"]
    assert zero["stage"] == int(name[4])
    assert zero["offload_optimizer"]["device"] == ("cpu" if "offload" in name else "none")
    assert zero["offload_param"]["device"] == ("cpu" if name == "zero3-offload" else "none")
    assert zero["stage3_gather_16bit_weights_on_model_save"] == (name[4] == "3")
    assert content["gradient_clipping"] == "auto", "explore.max_grad_norm and rft.max_grad_norm"
    assert content["gradient_accumulation_steps"] == "auto", "the run's"


@pytest.mark.parametrize(
    ("name", "sharded", "deepspeed", "offloaded"),
    [
        ("ddp", "", False, ""),
        ("fsdp", "weights gradients optimizer", False, ""),
        ("zero2", "gradients optimizer", True, ""),
        ("zero3", "weights gradients optimizer", True, ""),
        ("zero2-offload", "gradients optimizer", True, "optimizer"),
        ("zero3-offload", "weights gradients optimizer", True, "optimizer weights"),
    ],
)
def test_the_memory_model_reads_the_sharding_of_every_file(name, sharded, deepspeed, offloaded) -> None:
    from rloop_core.plan.sharding import sharding_named

    way = sharding_named(small_config(placement={"accelerate_config": str(ROOT / f"infra/accelerate/{name}.yaml")}))
    assert way is not None and way.deepspeed is deepspeed
    assert [kind for kind in ("weights", "gradients", "optimizer") if getattr(way, kind)] == sharded.split()
    assert [kind for kind in ("optimizer", "weights") if getattr(way, f"offload_{kind}")] == offloaded.split()


@pytest.mark.parametrize(
    ("content", "where"),
    [
        ("[hunter2]", ""),
        ("hunter2", ""),
        ("password: [hunter2", " (line 1, column 19)"),
        ("a: 1\npassword: @hunter2", " (line 2, column 11)"),
        ("distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: hunter2}", ""),
    ],
)
def test_an_invalid_accelerate_config_is_named_and_not_quoted(tmp_path, content, where):
    """A run's parameters may name any file of the worker, and the UI shows the error."""
    from rloop_core.plan.sharding import sharding_named

    path = tmp_path / "accelerate.yaml"
    path.write_text(content)
    with pytest.raises(ConfigError) as refused:
        sharding_named(small_config(placement={"accelerate_config": str(path)}))
    assert refused.value.what == f"{path} is no accelerate config{where}"
    assert "hunter2" not in "".join(traceback.format_exception(refused.value))
