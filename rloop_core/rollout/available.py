"""Whether the engine that a config names can be had here, asked before anything expensive starts."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from rloop_core.config import Config
from rloop_core.errors import ConfigError

_INSTALL = "pip install 'rloop[vllm]' (needs a GPU), or set it to transformers"


def check_standalone(config: Config, field: str = "placement.engine") -> None:
    """Refuse an engine for harvest and evaluate that is not installed here.

    Args:
        config: The run's config.
        field: Where the user named it.

    Raises:
        ConfigError: It is not.
    """
    if config.placement.engine == "vllm":
        _check_installed(field)


def check_in_loop(config: Config, device: str | None) -> None:
    """Refuse vLLM in exploration where it is not installed, or where there is no GPU.

    On a CPU vLLM repacks linear weights as it loads them, so it cannot take over those of the next update; and to a
    server they go by NCCL, from GPU to GPU.

    Args:
        config: The run's config.
        device: "cpu" or "cuda"; None while it is not known what explores.

    Raises:
        ConfigError: It cannot explore here.
    """
    if config.explore.engine != "vllm":
        return
    if "cpu" in (device, config.placement.device):
        what = "vLLM cannot follow a policy that is trained on a CPU"
        fix = "set it to transformers, or explore on a GPU (placement.device: cuda)"
        raise ConfigError(what, field="explore.engine", fix=fix)
    _check_installed("explore.engine")


def engine_name(engine: str) -> str:
    """An engine with its version, as a manifest names who drew an artifact's completions: "vllm 0.29.0"."""
    for package in (engine, f"{engine}-cpu"):  # the community's CPU build of vLLM is called so
        try:
            return f"{engine} {version(package)}"
        except PackageNotFoundError:
            continue
    return engine


def _check_installed(field: str) -> None:
    if find_spec("vllm") is None:
        raise ConfigError("vLLM is not installed here", field=field, fix=_INSTALL)
