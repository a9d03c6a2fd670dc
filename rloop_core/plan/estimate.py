"""The plan of a run: counts, tokens, storage, memory and a range of hours in one dictionary."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from rloop_core.config import Config, ProblemSource, check_context
from rloop_core.plan.memory import GIB, USABLE, StageMemory, placed, sharding_of, stage_memories, with_passes
from rloop_core.plan.models import ModelShape, element_bytes, find_shape
from rloop_core.problems.registry import GENERATED, PROCEDURAL_PREFIX, hub_source
from rloop_core.rollout.available import uses_vllm

MEAN_SHARE = 0.5
"""Assumed mean completion length as a share of the budget; hours are a range from here to the whole budget."""
MEAN_PROMPT = 150
"""Assumed mean prompt in tokens, unless the budget is smaller."""
BYTES_A_TOKEN_STORED = 3.5
"""Parquet (zstd) bytes of one completion token: its id about 2, its text about 1.5. Estimated."""
TRAINING_EFFICIENCY = 0.31
"""Share of the peak FLOP/s that updates reach: measured on one H100, a 1.5 B Qwen2 with gradient checkpointing."""
DECODING_EFFICIENCY = 0.5
"""The same of decoding. Assumed; vLLM reached 0.44 with a 7.6 B Qwen2."""
BANDWIDTH_EFFICIENCY = 0.6
"""Share of the memory bandwidth that decoding reaches. Assumed."""
GENERATE_SECONDS_A_LAYER = 3.0e-3
"""Host's time for a layer of one step of `generate`: measured on one H200, 0.5 B, batch 256, 3,560 tokens/s."""
VLLM_SECONDS_A_SEQUENCE = 3.6e-5
"""Host's time for a sequence of one decoding step of vLLM: measured on one H200 with vLLM 0.26, 512 sequences x 512
tokens, 28,900 tokens/s with a 7.6 B Qwen2 and 27,000 with one of 0.5 B."""
VLLM_SEQUENCES = 512
"""Sequences that vLLM works on at a time, as in that measurement."""


@dataclass(frozen=True)
class Device:
    """A GPU: usable GiB; peak dense bf16 FLOP/s and memory bytes/s of the data sheet."""

    name: str
    memory_gib: float
    flops: float
    bandwidth: float


DEVICES: dict[str, Device] = {
    "h100": Device("NVIDIA H100 SXM 80 GB", 79.0, 989e12, 3.35e12),
    "h200": Device("NVIDIA H200 141 GB", 139.0, 989e12, 4.8e12),
    "a100": Device("NVIDIA A100 SXM 80 GB", 79.0, 312e12, 2.0e12),
    "l40s": Device("NVIDIA L40S 48 GB", 44.0, 362e12, 0.864e12),
    "rtx4090": Device("NVIDIA RTX 4090 24 GB", 23.5, 165e12, 1.008e12),
}


def make_plan(config: Config, gpu: str | None = None, gpus: int | None = None) -> dict[str, Any]:
    """Estimate a run of this config on `gpus` devices, by default as many as the config has processes.

    `gpu` is a key of `DEVICES`, or `cpu`; None takes `cpu` if the config says so, else an H100. Raises ConfigError if
    the local policy is unusable, or the budgets exceed its context.
    """
    gpu = gpu or ("cpu" if config.placement.device == "cpu" else "h100")
    gpus = gpus or config.placement.processes
    shape, device, counts = find_shape(config.policy), DEVICES.get(gpu), counts_of(config)
    check_context(config, shape.context if shape else None, config.policy.path)
    total = device.memory_gib * GIB if device else float(psutil.virtual_memory().total)
    if device is None:  # on a CPU training takes the default, not as many tokens as fit
        checkpointing = bool(config.placement.gradient_checkpointing)
        config = placed(config, micro_batch_tokens=config.placement.pass_tokens, gradient_checkpointing=checkpointing)
    elif shape:
        config = with_passes(config, shape, USABLE * total, gpus)
    memory = stage_memories(config, shape, USABLE * total, gpus) if shape else []
    hours: dict[str, list[float]] = {}
    if shape and device:
        ends = [stage_hours(config, counts, shape, device, gpus, share) for share in (MEAN_SHARE, 1.0)]
        hours = {name: [end[name] for end in ends] for name in ends[0]}
    times = {"evaluate": counts["policies_evaluated"]}
    totals = [sum(times.get(name, config.iterations) * ends[end] for name, ends in hours.items()) for end in (0, 1)]
    return {
        "run": config.name,
        "iterations": config.iterations,
        "policy": {"path": config.policy.path, **(asdict(shape) if shape else {"parameters": None})},
        "device": {
            "kind": gpu, "name": device.name if device else "CPU", "count": gpus, "memory_gib": round(total / GIB, 1)
        },
        "sharding": {"name": sharding_of(config).name, "file": config.placement.accelerate_config},
        "counts": counts,
        "tokens": _tokens(config, counts),
        "storage_bytes": {name: round(value) for name, value in _storage(config, counts, shape).items()},
        "passes": {
            "tokens": config.placement.micro_batch_tokens, "checkpointing": config.placement.gradient_checkpointing
        },
        "memory": [_in_gib(stage) for stage in memory],
        "hours": {"per_iteration": hours, "total": totals if hours else None},
        "does_not_fit": [f"{stage.stage}: {stage.fix}" for stage in memory if not stage.fits],
        "assumptions": [
            f"A completion has {MEAN_SHARE:.0%} of its budget on average, a prompt {MEAN_PROMPT} tokens at most.",
            "Hours: from completions of half of their budget to completions that fill it, at speeds measured on one "
            "H100 and one H200 with policies of 0.5 to 7.6 B; without communication between devices; none on a CPU.",
            "Memory and hours need a policy of known size: a local one, or one of Qwen2.5's.",
        ],
        "config": config.model_dump(mode="json"),
    }  # fmt: skip


def _in_gib(stage: StageMemory) -> dict[str, Any]:
    needed, available = round(stage.needed / GIB, 2), round(stage.available / GIB, 2)
    parts = {name: round(value / GIB, 2) for name, value in stage.parts.items()}
    sizes = {"needed_gib": needed, "available_gib": available, "parts_gib": parts}
    return {"stage": stage.stage, "fits": stage.fits, **sizes}


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
    path = Path(source.source).expanduser()
    if source.source.startswith(PROCEDURAL_PREFIX):
        size = source.size or GENERATED
    elif size is None and source.source.endswith((".jsonl", ".ndjson")) and path.is_file():
        with path.open("rb") as stream:
            size = sum(1 for line in stream if line.strip())
    return min(size or source.limit, source.limit) if source.limit else size


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


def stage_hours(
    config: Config, counts: dict[str, Any], shape: ModelShape, device: Device, devices: int, share: float
) -> dict[str, float]:
    """Return the hours of the stages that train or sample in one iteration, `evaluate` of one policy.

    `counts` are those of `counts_of`, `share` is the mean completion length as a share of its budget.
    """
    explore = config.explore
    prompt: int = counts["prompt_tokens"]

    def sampling(stage: str, sequences: float, budget: int) -> float:
        vllm = uses_vllm(config, stage)
        each = sequences / (devices if vllm or stage == "explore" else 1)
        batch = min(each, VLLM_SEQUENCES if vllm else config.placement.generation_batch)
        # A batch of `generate` takes as many steps as its longest completion has tokens.
        steps = share * budget if vllm else budget
        return each / batch * steps * decoding_seconds(shape, device, batch, prompt + steps / 2, config, stage)

    def training(passes: int, rows: int) -> float:
        tokens = rows * (prompt + share * explore.max_completion_tokens)
        return passes * shape.parameters * tokens / (device.flops * TRAINING_EFFICIENCY * devices)

    # FLOP a parameter and token: 2 forward, 4 backward, of which adapters skip the gradients of frozen weights.
    learning = 4 if config.lora.enabled else 6
    update = learning + 2 * (explore.updates_per_step > 1) + 2 * bool(config.placement.gradient_checkpointing)
    experts, snapshots = counts["expert_trajectories_at_most"] or 0, counts["snapshot_rollouts_per_iteration"] or 0
    step = sampling("explore", explore.rollouts_per_step, explore.max_completion_tokens)
    seconds = {
        "explore: sampling": explore.steps * step,
        "explore: updates": training(update, counts["rollouts_per_iteration"]),
        "harvest": sampling("harvest", snapshots, explore.max_completion_tokens) if snapshots else 0.0,
        "rft (at most)": training(learning, config.rft.epochs * experts),
    }
    if samples := counts["evaluation_samples_per_policy"]:
        known = {label: count for label, count in samples.items() if count}
        each = [sampling("evaluate", count, config.evaluation_tokens_of(label)) for label, count in known.items()]
        seconds["evaluate"] = sum(each)
    return {name: value / 3600 for name, value in seconds.items()}


def decoding_seconds(
    shape: ModelShape, device: Device, sequences: float, length: float, config: Config, stage: str
) -> float:
    """Return the seconds of one decoding step of a stage's engine, for sequences of `length` cached tokens each.

    It takes the longest of: the host's work, reading weights and cache, and computing.
    """
    host = shape.layers * GENERATE_SECONDS_A_LAYER
    if uses_vllm(config, stage):
        host = sequences * VLLM_SECONDS_A_SEQUENCE
    element = element_bytes(config)
    read = shape.parameters * element + sequences * length * shape.kv_bytes_per_token(element)
    computing = 2 * shape.parameters * sequences / (device.flops * DECODING_EFFICIENCY)
    return max(host, read / (device.bandwidth * BANDWIDTH_EFFICIENCY), computing)
