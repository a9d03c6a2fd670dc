"""The same run on machines that people have: what does not fit on which, and the settings with which it does."""

from __future__ import annotations

from typing import Any

from rloop_core.config import Config, make_config
from rloop_core.errors import ConfigError
from rloop_core.plan.devices import DEVICES, GPUS_A_MACHINE, Device
from rloop_core.plan.hours import stage_hours, total_hours
from rloop_core.plan.memory import GIB, USABLE, stage_memories
from rloop_core.plan.models import ModelShape
from rloop_core.plan.sharding import FOLDER, ONE, Sharding, host_bytes, ladder, sharding_named, trained_parameters
from rloop_core.plan.workload import Workload

MACHINES = (("h200", 1), ("h100", 8), ("h200", 8), ("h100", 64))
SHARED_FOLDER = "/shared/rloop"
"""Stands for a folder that all machines see, where the config names none."""
ADAPTER_RANK = 32
HOST_BANDWIDTH = 25e9
"""Bytes a second between a device and the host's memory, the host's own update included. Assumed: PCIe 5, half used."""


def machine_rows(config: Config, shape: ModelShape, work: Workload) -> list[dict[str, Any]]:
    """One row a machine: how states are shared out, memory, hours of the run, and settings to change, if any.

    `settings` are fields by path, with which every stage fits: this was computed, not guessed. Where no setting helps
    they are None, and `why` says what is in the way.
    """
    return [_row(config, shape, work, kind, count) for kind, count in MACHINES]


def fitting_settings(
    config: Config, shape: ModelShape, work: Workload, device: Device, devices: int
) -> tuple[Config, Sharding, float] | None:
    """The config changed so that every stage fits, how states are shared out, and hours of the run; None if none does.

    Of the ways to share states out, in the host's memory too, with activations kept or computed twice and batches in
    smaller parts, it is the one that takes the least time. Adapters instead of all weights are another computation, so
    that they come last.
    """
    available = USABLE * device.memory_gib * GIB
    adapters = config.model_copy(update={"lora": config.lora.model_copy(update={"rank": ADAPTER_RANK})})
    named = sharding_named(config)
    ways = ((named,) if named else ()) + tuple(way for way in ladder(devices) if way != named)
    for chosen in [config] if config.lora.enabled else [config, adapters]:
        found = []
        for place, way in enumerate(ways):
            for checkpointing in sorted({config.placement.gradient_checkpointing, True}):
                tried = _placed(chosen, gradient_checkpointing=checkpointing)
                small = _smaller(tried, shape, available, devices, way)
                if small is not None:
                    hours = total_hours(small, work, stage_hours(small, shape, work, device, devices))
                    hours += config.iterations * _moving_hours(small, shape, work, way, devices)
                    found.append((hours, place, checkpointing, small, way))
        if found:
            hours, _, _, small, way = min(found, key=lambda one: one[:3])
            return small, way, hours
    return None


def _moving_hours(config: Config, shape: ModelShape, work: Workload, way: Sharding, devices: int) -> float:
    """Hours of an iteration that explore spends on moving to and from the host's memory what is kept there."""
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
    found = fitting_settings(spread, shape, work, device, count)
    if found is None:
        return {**row, "settings": None, "why": "the states fit in no way that is known here: take larger devices"}
    small, way, hours = found
    memory = {one.stage: round(one.needed / GIB, 1) for one in stage_memories(small, shape, available, count, way)}
    host = round(host_bytes(small, shape, way) / small.placement.machines / GIB, 1)
    changes = _changes(config, small, way)
    return {**row, "sharding": way.name, "memory_gib": memory, "host_gib": host, "hours": hours, "settings": changes}


def _spread(config: Config, processes: int) -> Config:
    """The config on so many processes and their machines, its parts of batches shrunk until they divide.

    Raises:
        ConfigError: Some batch cannot be shared among so many.
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
            share = whole // processes
            placement[field] = max(n for n in range(1, min(share, placement[field]) + 1) if share % n == 0)
    return make_config(data)


def _smaller(config: Config, shape: ModelShape, available: float, devices: int, way: Sharding) -> Config | None:
    """The config with the largest parts of batches that fit, none above its own; None where the smallest do not."""

    def fits(tried: Config, stage: str) -> bool:
        memories = stage_memories(tried, shape, available, devices, way)
        return all(one.fits for one in memories if one.stage == stage)

    placement, mini = config.placement, config.explore.mini_batch_rollouts // devices
    share = config.rft.batch_trajectories // devices
    micros = [n for n in range(placement.micro_batch_rollouts or mini, 0, -1) if mini % n == 0]
    batches = [placement.generation_batch, *(2**n for n in range(11, 2, -1) if 2**n < placement.generation_batch)]
    # What generation needs and what a pass needs do not add up: each is shrunk with the other at its least.
    least = _placed(config, micro_batch_rollouts=1, micro_batch_trajectories=1)
    batch = next((n for n in batches if fits(_placed(least, generation_batch=n), "explore")), None)
    if batch is None or not fits(_placed(least, generation_batch=batch), "rft"):
        return None
    if config.evaluate.sets:
        batch = next((n for n in batches if n <= batch and fits(_placed(least, generation_batch=n), "evaluate")), None)
        if batch is None:
            return None
    config = _placed(config, generation_batch=batch)
    micro = next((n for n in micros if fits(_placed(config, micro_batch_rollouts=n), "explore")), None)
    rows = [n for n in range(placement.micro_batch_trajectories or share, 0, -1) if share % n == 0]
    row = next((n for n in rows if fits(_placed(config, micro_batch_trajectories=n), "rft")), None)
    if micro is None or row is None:
        return None
    return _placed(
        config,
        micro_batch_rollouts=micro if placement.micro_batch_rollouts or micro != mini else None,
        micro_batch_trajectories=row if placement.micro_batch_trajectories or row != share else None,
    )


def _changes(before: Config, after: Config, way: Sharding) -> dict[str, Any]:
    """Fields by path that differ, and the accelerate config that the way needs."""
    old, new = before.placement.model_dump(), after.placement.model_dump()
    first = ("machines", "scratch", "processes")  # what the rest depends on
    names = [*first, *(name for name in new if name not in first)]
    changed = {f"placement.{name}": new[name] for name in names if new[name] != old[name]}
    if after.lora != before.lora:
        changed["lora.rank"] = after.lora.rank
    if way.file and way.file != before.placement.accelerate_config:
        changed["placement.accelerate_config"] = way.file
    elif before.placement.accelerate_config and way.file is None and way != ONE:
        changed["placement.accelerate_config"] = f"{FOLDER}/ddp.yaml"
    return changed


def _placed(config: Config, **fields: Any) -> Config:
    return config.model_copy(update={"placement": config.placement.model_copy(update=fields)})
