"""How many engines draw at a time, and which devices each of them sees."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from rloop_core.config import Config
from rloop_core.errors import ConfigError

VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class Place:
    """Where one engine computes.

    Attributes:
        number: Counted from 1.
        engines: How many there are.
        devices: What `CUDA_VISIBLE_DEVICES` is to it; None leaves that as it is.
    """

    number: int = 1
    engines: int = 1
    devices: str | None = None

    @property
    def name(self) -> str:
        """What a user is told of this engine."""
        several = f"engine {self.number} of {self.engines}" if self.engines > 1 else "the engine"
        return f"{several} (GPU {self.devices})" if self.devices else several


def engine_places(config: Config, device: str) -> list[Place]:
    """A place for each engine of harvest and evaluate on this machine.

    On GPUs there are as many as `placement.engines` says, by default one for every `placement.vllm.tensor_parallel` of
    those that are visible (one for each with transformers), and no device has two. On a CPU there is one by default.

    Args:
        config: The run's config.
        device: "cpu" or "cuda".

    Raises:
        ConfigError: Fewer GPUs are visible than that takes.
    """
    wanted = config.placement.engines
    if device != "cuda":
        return _places([None] * (wanted or 1))
    visible = visible_devices()
    width = devices_an_engine(config)
    most = len(visible) // width
    if most < (wanted or 1):
        each = f" of {width} GPUs" if width > 1 else ""
        raise ConfigError(
            f"{wanted or 1} engine{'s' if wanted and wanted > 1 else ''}{each} cannot be had: "
            f"{len(visible)} GPU{'s are' if len(visible) != 1 else ' is'} visible here",
            field="placement.engines" if wanted else "placement.vllm.tensor_parallel",
            fix=f"set it to at most {most if wanted else len(visible)}" if most else "make more GPUs visible",
        )
    return _places([",".join(visible[at * width : (at + 1) * width]) for at in range(wanted or most)])


def devices_an_engine(config: Config) -> int:
    """GPUs that one engine of harvest and evaluate takes."""
    return config.placement.vllm.tensor_parallel if config.placement.engine == "vllm" else 1


def visible_devices() -> list[str]:
    """GPUs that this process may use, by the names that `CUDA_VISIBLE_DEVICES` knows them by."""
    import torch

    count = torch.cuda.device_count()
    given = [name.strip() for name in os.environ.get(VISIBLE, "").split(",") if name.strip()]
    return (given or [str(index) for index in range(count)])[:count]


def _places(devices: Sequence[str | None]) -> list[Place]:
    return [Place(number, len(devices), names) for number, names in enumerate(devices, start=1)]
