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


def replicas_of(config: Config, device: str) -> int:
    """Replicas of vLLM that draw for harvest and evaluate on this machine; see `placement.engines`.

    Args:
        config: The run's config.
        device: "cpu" or "cuda".

    Raises:
        ConfigError: Fewer GPUs are visible than they take.
    """
    wanted = config.placement.engines
    if device != "cuda":
        return wanted or 1
    import torch

    visible, width = torch.cuda.device_count(), config.placement.vllm.tensor_parallel
    most = visible // width
    if most < (wanted or 1):
        each = f" of {width} GPUs" if width > 1 else ""
        raise ConfigError(
            f"{wanted or 1} engine{'s' if wanted and wanted > 1 else ''}{each} cannot be had: "
            f"{visible} GPU{'s are' if visible != 1 else ' is'} visible here",
            field="placement.engines" if wanted else "placement.vllm.tensor_parallel",
            fix=f"set it to at most {most if wanted else visible}" if most else "make more GPUs visible",
        )
    return wanted or most


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
