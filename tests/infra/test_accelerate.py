"""The accelerate configs, as accelerate's own launcher reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import ROOT

CONFIGS = sorted((ROOT / "infra/accelerate").glob("*.yaml"))
KINDS = {"ddp": "multi_gpu", "fsdp": "use_fsdp", "zero2": "use_deepspeed", "zero3-offload": "use_deepspeed"}


def _parsed(path: Path) -> Any:
    from accelerate.commands.launch import launch_command_parser

    return launch_command_parser().parse_args(["--config_file", str(path), "script.py"])


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_the_launcher_takes_it_for_what_it_is(path: Path) -> None:
    from accelerate.commands.launch import _validate_launch_command

    args, _, _ = _validate_launch_command(_parsed(path))
    assert [kind for kind in sorted(set(KINDS.values())) if getattr(args, kind)] == [KINDS[path.stem]]
    assert (args.mixed_precision, args.num_processes, args.num_machines) == ("bf16", 8, 1)
    if "zero" in path.stem:
        assert args.zero_stage == int(path.stem[4])
        assert args.offload_param_device == ("cpu" if "offload" in path.stem else "none")


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
