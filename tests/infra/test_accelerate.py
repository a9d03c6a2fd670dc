"""The accelerate configs, as accelerate's own launcher reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import ROOT, small_config

CONFIGS = sorted((ROOT / "infra/accelerate").glob("*.yaml"))
KINDS = {"ddp": "multi_gpu", "fsdp": "use_fsdp"} | dict.fromkeys(
    ("zero2", "zero2-offload", "zero3", "zero3-offload"), "use_deepspeed"
)


def _parsed(path: Path) -> Any:
    from accelerate.commands.launch import launch_command_parser

    return launch_command_parser().parse_args(["--config_file", str(path), "script.py"])


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_the_launcher_takes_it_for_what_it_is(path: Path) -> None:
    from accelerate.commands.launch import _validate_launch_command

    args, _, _ = _validate_launch_command(_parsed(path))
    assert [kind for kind in sorted(set(KINDS.values())) if getattr(args, kind)] == [KINDS[path.stem]]
    processes = 1 if path.stem == "zero2-offload" else 8
    assert (args.mixed_precision, args.num_processes, args.num_machines) == ("bf16", processes, 1)
    if "zero" in path.stem:
        assert args.zero_stage == int(path.stem[4])
        assert args.offload_param_device == ("cpu" if path.stem == "zero3-offload" else "none")
        assert args.offload_optimizer_device == ("cpu" if "offload" in path.stem else "none")


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_the_launcher_knows_every_setting(path: Path) -> None:
    """One that it does not know, it would pass over in silence."""
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
    assert content["gradient_clipping"] == small_config().explore.max_grad_norm == small_config().rft.max_grad_norm
    assert content["gradient_accumulation_steps"] == "auto", "the run's"


def test_every_way_that_the_plan_knows_is_a_file_that_does_that() -> None:
    from rloop_core.plan.sharding import FSDP, ladder, sharding_named

    for way in {FSDP, *ladder(1), *ladder(8)}:
        if way.file:
            given = sharding_named(small_config(placement={"accelerate_config": str(ROOT / way.file)}))
            assert given is not None
            told = {name: value for name, value in vars(given).items() if isinstance(value, bool)}
            assert told == {name: value for name, value in vars(way).items() if isinstance(value, bool)}, way.name
