"""The plan of a run: counts, tokens, storage, memory and a range of hours in one dictionary."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from rloop_core.config import Config, InvalidCombination, ProblemSource, check_context
from rloop_core.errors import ConfigError
from rloop_core.plan.hours import DEVICES, stage_hours
from rloop_core.plan.memory import GIB, USABLE, micro_batch_tokens, placed, sharding_of, stage_memories
from rloop_core.plan.models import ModelShape, element_bytes, find_shape
from rloop_core.problems.registry import PROCEDURAL_PREFIX, hub_source

GENERATED = 100
"""Problems that a generator makes if the config does not say."""
MEAN_SHARE = 0.5
"""Assumed mean completion length as a share of the budget; hours are a range from here to the whole budget."""
MEAN_PROMPT = 150
"""Assumed mean prompt in tokens, unless the budget is smaller."""
BYTES_A_TOKEN_STORED = 3.5
"""Parquet (zstd) bytes of one completion token: its id about 2, its text about 1.5. Estimated."""


def make_plan(config: Config, gpu: str | None = None, gpus: int | None = None) -> dict[str, Any]:
    """Estimate a run of this config.

    Args:
        config: The run's config.
        gpu: A key of `hours.DEVICES`, or `cpu`; None takes `cpu` if the config says so, else an H100.
        gpus: Number of devices; None takes the config's processes.

    Raises:
        ConfigError: The local policy is unusable, or the budgets exceed its context.
    """
    gpu = gpu or ("cpu" if config.placement.device == "cpu" else "h100")
    gpus = gpus or config.placement.processes
    shape = find_shape(config.policy)
    if shape:
        try:
            check_context(config, shape.context, shape.source)
        except InvalidCombination as impossible:
            raise ConfigError(impossible.what, field=impossible.field, fix=impossible.fix) from None
    counts = counts_of(config)
    device = DEVICES.get(gpu)
    total = device.memory_gib * GIB if device else _host_memory()
    # On a CPU training takes the default, not as many tokens as fit.
    trained = config if device else placed(config, micro_batch_tokens=config.placement.pass_tokens)
    memory = stage_memories(trained, shape, USABLE * total, gpus) if shape else []
    hours, totals = {}, None
    if shape and device:
        ends = [stage_hours(config, counts, shape, device, gpus, share) for share in (MEAN_SHARE, 1.0)]
        hours = {name: [end[name] for end in ends] for name in ends[0]}
        evaluated = counts["policies_evaluated"]
        times = {name: evaluated if name == "evaluate" else config.iterations for name in hours}
        totals = [sum(times[name] * value for name, value in end.items()) for end in ends]
    way = sharding_of(config, gpus)
    return {
        "run": config.name,
        "iterations": config.iterations,
        "policy": {"path": config.policy.path, **(asdict(shape) if shape else {"parameters": None})},
        "device": {
            "kind": gpu, "name": device.name if device else "CPU", "count": gpus, "memory_gib": round(total / GIB, 1)
        },
        "sharding": {"name": way.name, "file": way.file},
        "counts": counts,
        "tokens": _tokens(config, counts),
        "storage_bytes": {name: round(value) for name, value in _storage(config, counts, shape).items()},
        "micro_batch_tokens": micro_batch_tokens(trained, shape, USABLE * total, gpus) if shape else None,
        "memory": [
            {
                "stage": stage.stage,
                "needed_gib": round(stage.needed / GIB, 2),
                "available_gib": round(stage.available / GIB, 2),
                "fits": stage.fits,
                "parts_gib": {name: round(value / GIB, 2) for name, value in stage.parts.items()},
            }
            for stage in memory
        ],
        "hours": {"per_iteration": hours, "total": totals},
        "does_not_fit": [f"{stage.stage}: {stage.fix}" for stage in memory if not stage.fits],
        "assumptions": _assumptions(config, counts, gpu, shape),
        "config": config.model_dump(mode="json"),
    }  # fmt: skip


def counts_of(config: Config) -> dict[str, Any]:
    """Count what the config asks for; None stands for what is unknown before problems are loaded."""
    explore = config.explore
    problems = count_problems(config.problems)
    rollouts = explore.steps * explore.rollouts_per_step
    batches = explore.dynamic_sampling.max_generation_batches if explore.dynamic_sampling.enabled else 1
    kept = explore.steps // explore.snapshot_every if explore.snapshot_every else 0
    sampled = config.harvest.snapshot_samples * (kept if config.harvest.snapshots == "all" else min(kept, 1))
    cap = config.filter.max_per_problem
    sizes = {source.label: count_problems(source) for source in config.evaluate.sets}
    policies = config.iterations * (1 + (kept if config.evaluate.snapshots else 0)) + config.evaluate.base
    return {
        "problems": problems,
        "prompt_tokens": min(MEAN_PROMPT, config.prompt.max_tokens),
        "rl_steps_per_iteration": explore.steps,
        "rollouts_per_rl_step": explore.rollouts_per_step,
        "rollouts_per_iteration": rollouts,
        "rollouts": rollouts * config.iterations,
        "rollouts_at_most": rollouts * batches * config.iterations,
        "rollouts_per_problem_and_iteration": round(rollouts / problems, 1) if problems else None,
        "updates_per_iteration": explore.steps * explore.updates_per_step,
        "snapshots_per_iteration": kept,
        "snapshot_rollouts_per_iteration": 0 if not sampled else problems * sampled if problems else None,
        "expert_trajectories_at_most": min(rollouts, cap * problems) if cap and problems else None if cap else rollouts,
        "evaluation_samples_per_policy": {
            label: size * config.evaluate.of(label).samples if size else None for label, size in sizes.items()
        },
        "policies_evaluated": policies if sizes else 0,
    }


def count_problems(source: ProblemSource) -> int | None:
    """Return a set's number of problems if it is known without loading it: by name, generator, or lines of a file."""
    known = hub_source(source.source)
    size = known.rows.get(source.split or known.split)
    if source.source.startswith(PROCEDURAL_PREFIX):
        size = source.size or GENERATED
    elif size is None and source.source.endswith((".jsonl", ".ndjson")) and Path(source.source).expanduser().is_file():
        with open(Path(source.source).expanduser(), "rb") as stream:
            size = sum(1 for line in stream if line.strip())
    if source.limit:
        return min(size, source.limit) if size else source.limit
    return size


def _tokens(config: Config, counts: dict[str, Any]) -> dict[str, float]:
    explored = counts["rollouts"] * config.explore.max_completion_tokens
    samples = counts["evaluation_samples_per_policy"].items()
    evaluated = counts["policies_evaluated"] * sum(
        (count or 0) * config.evaluation_tokens_of(label) for label, count in samples
    )
    return {
        "explored": MEAN_SHARE * explored,
        "explored_at_most": explored,
        "evaluated": MEAN_SHARE * evaluated,
        "evaluated_at_most": evaluated,
    }


def _storage(config: Config, counts: dict[str, Any], shape: ModelShape | None) -> dict[str, float]:
    """Return the bytes stored over the whole run by kind; weights only if the policy's size is known."""
    snapshots = (counts["snapshot_rollouts_per_iteration"] or 0) * config.iterations
    tokens = _tokens(config, counts)
    completions = tokens["explored"] + MEAN_SHARE * snapshots * config.explore.max_completion_tokens
    stored = {
        "trajectories": 2 * completions * BYTES_A_TOKEN_STORED,  # explore's shards and harvest's consolidated copy
        "evaluation samples": tokens["evaluated"] * BYTES_A_TOKEN_STORED,
    }
    if shape:
        policies = config.iterations * (2 + counts["snapshots_per_iteration"])
        stored["policies"] = policies * shape.parameters * element_bytes(config)
        # Weights and two moments in float32, of the last two checkpoints; removed when the stage is done.
        stored["checkpoints (local scratch)"] = 2 * 12 * shape.parameters
    return stored


def _assumptions(config: Config, counts: dict[str, Any], gpu: str, shape: ModelShape | None) -> list[str]:
    batches = counts["rollouts_at_most"] // max(1, counts["rollouts"])
    lines = [
        f"A completion has {MEAN_SHARE:.0%} of its budget on average, a prompt {MEAN_PROMPT} tokens at most.",
        f"One generation batch an RL step; dynamic sampling may take up to {batches}.",
        "Trajectories take 3.5 bytes a token, twice: explore's shards and harvest's copy (estimated).",
    ]
    unknown = [label for label, count in counts["evaluation_samples_per_policy"].items() if count is None]
    if unknown:
        lines.append(f"Not counted, their size is unknown: {', '.join(unknown)}.")
    if not shape:
        lines.append("The policy's size is unknown: name policy locally for memory and hours.")
    elif gpu == "cpu":
        lines.append("Hours are not estimated on a CPU.")
    else:
        lines.append(
            f"Hours: from completions of {MEAN_SHARE:.0%} of their budget to completions that fill it, at speeds "
            "measured on one H100 and one H200 with policies of 0.5 to 7.6 B; without communication between devices."
        )
        lines.append(f"{1 - USABLE:.0%} of each device is left to the allocator and to CUDA.")
    return lines


def _host_memory() -> float:
    import psutil

    return float(psutil.virtual_memory().total)
