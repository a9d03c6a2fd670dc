"""Hours of each stage on GPUs, from counts, the policy's sizes and speeds; each constant names its origin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rloop_core.config import Config
from rloop_core.plan.models import ModelShape, element_bytes
from rloop_core.rollout.available import uses_vllm
from rloop_core.rollout.vllm_server import asks_server


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
GPUS_A_MACHINE = 8
"""Most GPUs that sample in harvest and evaluate, which run on one machine."""
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
VLLM_START_SECONDS = 100.0
"""Start of vLLM: measured 48 to 150 s."""
_ROWS_A_SECOND = 200_000


def stage_hours(
    config: Config, counts: dict[str, Any], shape: ModelShape, device: Device, devices: int, share: float
) -> dict[str, float]:
    """Return the hours of each stage in one iteration, `evaluate` of one policy.

    Args:
        config: The run's config.
        counts: Of `estimate.counts_of`.
        shape: The policy's sizes.
        device: The kind of GPU.
        devices: Number of GPUs.
        share: Mean completion length as a share of its budget.
    """
    explore, placement = config.explore, config.placement
    budget = explore.max_completion_tokens
    tokens = counts["prompt_tokens"] + share * budget

    def sampling(stage: str, sequences: float, engines: int, budget: int) -> float:
        if not sequences:
            return 0.0
        each = sequences / engines
        if uses_vllm(config, stage):
            batch, steps = min(VLLM_SEQUENCES, each), share * budget
        else:  # a batch takes as many steps as its longest completion has tokens
            batch, steps = min(placement.generation_batch, each), float(budget)
        length = counts["prompt_tokens"] + steps / 2
        return each / batch * steps * decoding_seconds(shape, device, batch, length, config, stage)

    def training(passes: int, trained: float) -> float:
        return passes * shape.parameters * trained / (device.flops * TRAINING_EFFICIENCY * devices)

    def starts(stage: str) -> float:
        return VLLM_START_SECONDS if uses_vllm(config, stage) else 0.0

    engines = placement.engines or 1
    if uses_vllm(config, "evaluate"):
        engines = placement.engines or max(1, min(devices, GPUS_A_MACHINE) // placement.vllm.tensor_parallel)
    rollouts, snapshots = counts["rollouts_per_iteration"], counts["snapshot_rollouts_per_iteration"] or 0
    # FLOP a parameter and token: 2 forward, 4 backward, of which adapters skip the gradients of frozen weights.
    learning = 4 if config.lora.enabled else 6
    update = learning + 2 * (explore.updates_per_step > 1) + 2 * placement.gradient_checkpointing
    step = sampling("explore", explore.rollouts_per_step, 1 if asks_server(config) else devices, budget)
    experts = counts["expert_trajectories_at_most"] or 0
    seconds = {
        "explore: sampling": starts("explore") + explore.steps * step,
        "explore: updates": training(update, rollouts * tokens),
        "harvest": 2 * rollouts / _ROWS_A_SECOND + sampling("harvest", snapshots, engines, budget),
        "filter": rollouts / _ROWS_A_SECOND,
        "rft (at most)": training(learning, config.rft.epochs * experts * tokens),
    }
    if samples := counts["evaluation_samples_per_policy"]:
        budgets = {label: config.evaluation_tokens_of(label) for label in samples}
        sets = (sampling("evaluate", count or 0, engines, budgets[label]) for label, count in samples.items())
        seconds["evaluate"] = starts("evaluate") + sum(sets)
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
