"""The run on common machines: memory, hours, and settings with which it fits."""

from __future__ import annotations

from typing import Any

from rloop_core.config import Config, make_config
from rloop_core.errors import ConfigError
from rloop_core.plan.hours import DEVICES, GPUS_A_MACHINE, Device, stage_hours, total_hours
from rloop_core.plan.memory import GIB, USABLE, divisors, placed, stage_memories
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
                    hours += config.iterations * _moving_hours(small, shape, work, way, devices)
                    fitting.append((hours, rank, checkpointing, small, way))
        if fitting:
            hours, _, _, small, way = min(fitting, key=lambda candidate: candidate[:3])
            return small, way, hours
    return None


def _moving_hours(config: Config, shape: ModelShape, work: Workload, way: Sharding, devices: int) -> float:
    """Return the hours per iteration that explore spends on transfers to and from host memory."""
    moved = 16.0 * trained_parameters(config, shape) / devices if way.offload_optimizer else 0.0
    if way.offload_weights:
        micro = config.placement.micro_batch_rollouts or config.explore.mini_batch_rollouts // devices
        moved += 3 * 2.0 * shape.parameters * config.explore.mini_batch_rollouts / (micro * devices)
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
    """Return the config on so many processes and their machines, its micro-batches shrunk until they divide.

    Raises:
        ConfigError: A batch cannot be divided among so many processes.
    """
    data = config.model_dump(mode="json")
    placement = data["placement"]
    placement["processes"] = processes
    placement["machines"] = max(1, processes // GPUS_A_MACHINE)
    if placement["machines"] > 1:
        placement["scratch"] = placement["scratch"] or SHARED_FOLDER
    for field, whole in (
        ("micro_batch_rollouts", config.explore.mini_batch_rollouts),
        ("micro_batch_trajectories", config.rft.batch_trajectories),
    ):
        if placement[field] and whole % processes == 0:
            placement[field] = divisors(whole // processes, placement[field])[0]
    return make_config(data)


def _smaller(config: Config, shape: ModelShape, available: float, devices: int, way: Sharding) -> Config | None:
    """Return the config with the largest batches that fit, none above its own; None if the smallest do not."""

    def largest(config: Config, field: str, values: list[int], stages: tuple[str, ...]) -> int | None:
        for value in values:
            memories = stage_memories(placed(config, **{field: value}), shape, available, devices, way)
            if all(memory.fits for memory in memories if memory.stage in stages):
                return value
        return None

    placement, mini = config.placement, config.explore.mini_batch_rollouts // devices
    share = config.rft.batch_trajectories // devices
    batches = [placement.generation_batch, *(2**n for n in range(11, 2, -1) if 2**n < placement.generation_batch)]
    # Generation and passes do not take memory at the same time: each is shrunk with the other at its smallest.
    smallest = placed(config, micro_batch_rollouts=1, micro_batch_trajectories=1)
    batch = largest(smallest, "generation_batch", batches, ("explore", "rft", "evaluate"))
    if batch is None:
        return None
    config = placed(config, generation_batch=batch)
    micros = divisors(mini, placement.micro_batch_rollouts or mini)
    micro = largest(config, "micro_batch_rollouts", micros, ("explore",))
    rows = divisors(share, placement.micro_batch_trajectories or share)
    row = largest(config, "micro_batch_trajectories", rows, ("rft",))
    if micro is None or row is None:
        return None
    return placed(
        config,
        micro_batch_rollouts=micro if placement.micro_batch_rollouts or micro != mini else None,
        micro_batch_trajectories=row if placement.micro_batch_trajectories or row != share else None,
    )


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
