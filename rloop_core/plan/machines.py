"""The run on common machines: memory, hours, and settings with which it fits."""

from __future__ import annotations

from typing import Any

from rloop_core.config import Config, make_config
from rloop_core.errors import ConfigError
from rloop_core.plan.hours import DEVICES, GPUS_A_MACHINE, Device, stage_hours, total_hours
from rloop_core.plan.memory import GIB, USABLE, micro_batch_tokens, placed, stage_memories
from rloop_core.plan.models import ModelShape
from rloop_core.plan.sharding import FOLDER, ONE, Sharding, host_bytes, ladder, sharding_named, trained_parameters
from rloop_core.plan.workload import Workload

MACHINES = (("h200", 1), ("h100", 8), ("h200", 8), ("h100", 64))
SHARED_FOLDER = "/shared/rloop"
"""Example of a folder that all machines share, if the config names none."""
ADAPTER_RANK = 32
HOST_BANDWIDTH = 25e9
"""Bytes a second between a device and host memory, including the host's update. Assumed: half of PCIe 5."""


def machine_rows(config: Config, shape: ModelShape, work: Workload) -> list[dict[str, Any]]:
    """Return one row per machine: sharding, memory, hours of the run, and settings to change.

    `settings` are config fields by path with which the memory model says that every stage fits. If no setting helps
    they are None, and `why` gives the reason.
    """
    return [_row(config, shape, work, kind, count) for kind, count in MACHINES]


def fitting_settings(
    config: Config, shape: ModelShape, work: Workload, device: Device, devices: int
) -> tuple[Config, Sharding, float] | None:
    """Return the fastest config with which every stage fits, its sharding, and the run's hours; None if none fits.

    It tries each sharding, including offloading to host memory, with activations kept or recomputed, and smaller
    batches. Adapters come last, because training them is another computation.
    """
    available = USABLE * device.memory_gib * GIB
    adapters = config.model_copy(update={"lora": config.lora.model_copy(update={"rank": ADAPTER_RANK})})
    named = sharding_named(config)
    ways = ((named,) if named else ()) + tuple(way for way in ladder(devices) if way != named)
    for chosen in [config] if config.lora.enabled else [config, adapters]:
        fitting = []
        for rank, way in enumerate(ways):
            for checkpointing in sorted({config.placement.gradient_checkpointing, True}):
                tried = placed(chosen, gradient_checkpointing=checkpointing)
                small = _smaller(tried, shape, available, devices, way)
                if small is not None:
                    hours = total_hours(small, work, stage_hours(small, shape, work, device, devices))
                    tokens = micro_batch_tokens(small, shape, available, devices)
                    hours += config.iterations * _moving_hours(small, shape, work, way, devices, tokens)
                    fitting.append((hours, rank, checkpointing, small, way))
        if fitting:
            hours, _, _, small, way = min(fitting, key=lambda candidate: candidate[:3])
            return small, way, hours
    return None


def _moving_hours(config: Config, shape: ModelShape, work: Workload, way: Sharding, devices: int, tokens: int) -> float:
    """Return the hours per iteration that explore spends on transfers to and from host memory; passes of `tokens`."""
    moved = 16.0 * trained_parameters(config, shape) / devices if way.offload_optimizer else 0.0
    if way.offload_weights:
        passes = config.explore.mini_batch_rollouts * (work.prompt_tokens + work.completion_tokens) / devices / tokens
        moved += 3 * 2.0 * shape.parameters * max(1.0, passes)
    return work.updates * moved / HOST_BANDWIDTH / 3600


def _row(config: Config, shape: ModelShape, work: Workload, kind: str, count: int) -> dict[str, Any]:
    device = DEVICES[kind]
    available = USABLE * device.memory_gib * GIB
    row: dict[str, Any] = {"machine": f"{count} x {kind.upper()}", "kind": kind, "count": count}
    try:
        spread = _spread(config, count)
    except ConfigError as error:
        return {**row, "settings": None, "why": str(error)}
    fitting = fitting_settings(spread, shape, work, device, count)
    if fitting is None:
        return {**row, "settings": None, "why": "the states fit in no way that is known here: take larger devices"}
    small, way, hours = fitting
    memory = {
        stage.stage: round(stage.needed / GIB, 1) for stage in stage_memories(small, shape, available, count, way)
    }
    host = round(host_bytes(small, shape, way) / small.placement.machines / GIB, 1)
    changes = _changes(config, small, way)
    return {**row, "sharding": way.name, "memory_gib": memory, "host_gib": host, "hours": hours, "settings": changes}


def _spread(config: Config, processes: int) -> Config:
    """Return the config on so many processes and their machines.

    Raises:
        ConfigError: A batch cannot be divided among so many processes.
    """
    data = config.model_dump(mode="json")
    placement = data["placement"]
    placement["processes"] = processes
    placement["machines"] = max(1, processes // GPUS_A_MACHINE)
    if placement["machines"] > 1:
        placement["scratch"] = placement["scratch"] or SHARED_FOLDER
    return make_config(data)


def _smaller(config: Config, shape: ModelShape, available: float, devices: int, way: Sharding) -> Config | None:
    """Return the config with the largest batches that fit, none above its own; None if the smallest do not."""

    def fits(config: Config) -> bool:
        return all(memory.fits for memory in stage_memories(config, shape, available, devices, way))

    largest = config.placement.generation_batch
    for tokens in dict.fromkeys((config.placement.micro_batch_tokens, None)):
        for batch in (largest, *(2**n for n in range(11, 2, -1) if 2**n < largest)):
            tried = placed(config, generation_batch=batch, micro_batch_tokens=tokens)
            if fits(tried):
                return tried
    return None


def _changes(before: Config, after: Config, way: Sharding) -> dict[str, Any]:
    """Return the fields by path that differ, and the accelerate config of the sharding."""
    old, new = before.placement.model_dump(), after.placement.model_dump()
    first = ("machines", "scratch", "processes")  # the other fields depend on these
    names = [*first, *(name for name in new if name not in first)]
    changed = {f"placement.{name}": new[name] for name in names if new[name] != old[name]}
    if after.lora != before.lora:
        changed["lora.rank"] = after.lora.rank
    if way.file and way.file != before.placement.accelerate_config:
        changed["placement.accelerate_config"] = way.file
    elif before.placement.accelerate_config and way.file is None and way != ONE:
        changed["placement.accelerate_config"] = f"{FOLDER}/ddp.yaml"
    return changed
