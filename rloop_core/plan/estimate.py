"""The plan of a run: counts, tokens, storage, memory and hours in one dictionary."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rloop_core.config import Config, InvalidCombination, check_context
from rloop_core.errors import ConfigError
from rloop_core.plan.hours import (
    BANDWIDTH_EFFICIENCY,
    DEVICES,
    GENERATE_SECONDS_A_LAYER,
    GPUS_A_MACHINE,
    TRAINING_EFFICIENCY,
    sampling_engines,
    stage_hours,
    total_hours,
)
from rloop_core.plan.machines import machine_rows
from rloop_core.plan.memory import GIB, USABLE, StageMemory, fewest_devices, placed, sharding_of, stage_memories
from rloop_core.plan.models import find_shape
from rloop_core.plan.workload import MEAN_PROMPT, MEAN_SHARE, Workload, storage_bytes, workload_of
from rloop_core.rollout.vllm_server import asks_server


def make_plan(config: Config, gpu: str | None = None, gpus: int | None = None) -> dict[str, Any]:
    """Estimate a run of this config.

    Args:
        config: The run's config.
        gpu: A key of `hours.DEVICES`; None takes `cpu` if the config says so, else an H100.
        gpus: Number of devices; None takes the config's processes, or for one process the fewest devices (a power of
            two) that hold its training states.

    Raises:
        ConfigError: The local policy is unusable, or the budgets exceed its context.
    """
    gpu = gpu or ("cpu" if config.placement.device == "cpu" else "h100")
    device = DEVICES[gpu]
    shape = find_shape(config.policy)
    if shape:
        try:
            check_context(config, shape.context, shape.source)
        except InvalidCombination as impossible:
            raise ConfigError(impossible.what, field=impossible.field, fix=impossible.fix) from None
    work = workload_of(config)
    available = USABLE * (_memory() if gpu == "cpu" else device.memory_gib * GIB)
    if gpus is None and config.placement.processes > 1:
        gpus = config.placement.processes
    # On a CPU training takes the default, not as many tokens as fit.
    trained = placed(config, micro_batch_tokens=config.placement.pass_tokens) if gpu == "cpu" else config
    gpus = gpus or (fewest_devices(trained, shape, available) if shape else 1)
    way = sharding_of(trained, shape, available, gpus) if shape else None
    memory = stage_memories(trained, shape, available, gpus, way) if shape else []
    hours = stage_hours(config, shape, work, device, gpus) if shape else {}
    total = total_hours(config, work, hours)
    slow = _with_generate(config)
    slow_total = total_hours(slow, work, stage_hours(slow, shape, work, device, gpus)) if shape and slow else None
    return {
        "run": config.name,
        "iterations": config.iterations,
        "policy": {"path": config.policy.path, **(asdict(shape) if shape else {"parameters": None})},
        "device": {"kind": gpu, "name": device.name, "count": gpus, "memory_gib": round(available / USABLE / GIB, 1)},
        "sharding": {"name": way.name, "file": way.file} if way else None,
        "counts": _counts(config, work),
        "tokens": _tokens(config, work),
        "storage_bytes": {name: round(value) for name, value in storage_bytes(config, work, shape).items()},
        "memory": [_memory_row(stage) for stage in memory],
        "hours": {"per_iteration": hours, "total": total if shape else None, "total_with_generate": slow_total},
        "does_not_fit": [f"{stage.stage}: {fix}" for stage in memory for fix in stage.fixes],
        "machines": machine_rows(config, shape, work) if shape and gpu != "cpu" else [],
        "assumptions": _assumptions(config, gpu, gpus, shape is not None, work),
        "config": config.model_dump(mode="json"),
    }


def _with_generate(config: Config) -> Config | None:
    """Return the config with transformers' `generate` in vLLM's place; None if it has it already."""
    explore, placement = config.explore, config.placement
    if (explore.engine, placement.engine) == ("transformers", "transformers"):
        return None
    vllm = placement.vllm.model_copy(update={"server": None})
    changes = {"engine": "transformers"}
    placement = placement.model_copy(update={**changes, "engines": None, "vllm": vllm})
    return config.model_copy(update={"explore": explore.model_copy(update=changes), "placement": placement})


def _counts(config: Config, work: Workload) -> dict[str, Any]:
    return {
        "problems": work.problems,
        "rl_steps_per_iteration": config.explore.steps,
        "rollouts_per_rl_step": config.explore.rollouts_per_step,
        "rollouts_per_iteration": work.rollouts,
        "rollouts": work.rollouts * config.iterations,
        "rollouts_at_most": work.rollouts_at_most * config.iterations,
        "rollouts_per_problem_and_iteration": round(work.rollouts / work.problems, 1) if work.problems else None,
        "updates_per_iteration": work.updates,
        "expert_trajectories_at_most": work.expert_at_most,
        "evaluation_samples_per_policy": work.evaluated,
        "policies_evaluated": work.policies_evaluated,
    }


def _tokens(config: Config, work: Workload) -> dict[str, float]:
    rollouts = work.rollouts * config.iterations
    return {
        "explored": rollouts * work.completion_tokens,
        "explored_at_most": rollouts * config.explore.max_completion_tokens,
        "evaluated": work.policies_evaluated * work.evaluated_tokens,
        "evaluated_at_most": work.policies_evaluated * work.evaluated_tokens_at_most,
    }


def _memory_row(memory: StageMemory) -> dict[str, Any]:
    return {
        "stage": memory.stage,
        "needed_gib": round(memory.needed / GIB, 2),
        "available_gib": round(memory.available / GIB, 2),
        "fits": memory.fits,
        "parts_gib": {name: round(value / GIB, 2) for name, value in memory.parts.items()},
        "fixes": list(memory.fixes),
    }


def _assumptions(config: Config, gpu: str, gpus: int, known: bool, work: Workload) -> list[str]:
    lines = [
        f"A completion has {MEAN_SHARE:.0%} of its budget on average, a prompt {MEAN_PROMPT} tokens at most.",
        "Hours and bytes hold for one generation batch an RL step; dynamic sampling may take up to "
        f"{work.rollouts_at_most // work.rollouts}.",
        "Trajectories take 3.5 bytes a token, twice: explore's shards and harvest's copy (estimated).",
    ]
    unknown = [label for label, count in work.evaluated.items() if count is None]
    if unknown:
        lines.append(f"Not counted, their size is unknown: {', '.join(unknown)}.")
    if not known:
        lines.append("The policy's size is unknown: name policy locally for memory and hours.")
        return lines
    if gpu == "cpu":
        lines.append(
            "CPU: 7e9 parameters x tokens a second of `generate`, at most 16,000 tokens/s; 5e10 FLOP/s in training "
            "(from measurements on policies of 0.5 to 1 M parameters)."
        )
    else:
        lines.append(
            f"Sampling by `generate`: at least {1000 * GENERATE_SECONDS_A_LAYER:.0f} ms a layer and decoding "
            f"step (measured on one H200); bandwidth at {BANDWIDTH_EFFICIENCY:.0%} of the data sheet."
        )
        lines.append(f"Training at {TRAINING_EFFICIENCY:.0%} of the peak bf16 rate (measured on one H100).")
        lines.append(
            "vLLM, where the config says so: at most 512 sequences, 36 us of the host each and step (28,900 and 27,000 "
            "tokens/s measured on one H200 with 7.6 B and 0.5 B); 100 s to start."
        )
        if asks_server(config):
            lines.append("The server that samples exploration's rollouts is assumed to have one such device.")
        lines.append(f"{1 - USABLE:.0%} of each device is left to the allocator and to CUDA.")
    if gpus > 1:
        engines = sampling_engines(config, gpus)
        lines.append(
            "Several devices: explore and rft are divided evenly, communication is not counted; in harvest and "
            f"evaluate {engines} engine{'s share' if engines > 1 else ' takes'} the batches on one machine. More than "
            f"{GPUS_A_MACHINE} are several machines (placement.machines), joined by `ray start`."
        )
    return lines


def _memory() -> float:
    import psutil

    return float(psutil.virtual_memory().total)
