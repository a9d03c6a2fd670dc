"""Hours of each stage from counts, the policy's shape and the devices' speeds; each constant names its origin."""

from __future__ import annotations

from dataclasses import dataclass

from rloop_core.config import Config
from rloop_core.plan.memory import generated_together
from rloop_core.plan.models import ModelShape, element_bytes
from rloop_core.plan.workload import MEAN_PROMPT, MEAN_SHARE, Workload
from rloop_core.rollout.available import uses_vllm
from rloop_core.rollout.vllm_server import asks_server


@dataclass(frozen=True)
class Device:
    """An accelerator, or the CPU.

    Attributes:
        name: As printed.
        memory_gib: Usable memory.
        flops: Peak dense bf16 FLOP/s (data sheet); for the CPU the rate that training reaches.
        bandwidth: Memory bytes/s (data sheet).
    """

    name: str
    memory_gib: float
    flops: float
    bandwidth: float

    @property
    def is_cpu(self) -> bool:
        """True for the CPU."""
        return self == DEVICES["cpu"]


DEVICES: dict[str, Device] = {
    "h100": Device("NVIDIA H100 SXM 80 GB", 79.0, 989e12, 3.35e12),
    "h200": Device("NVIDIA H200 141 GB", 139.0, 989e12, 4.8e12),
    "a100": Device("NVIDIA A100 SXM 80 GB", 79.0, 312e12, 2.0e12),
    "l40s": Device("NVIDIA L40S 48 GB", 44.0, 362e12, 0.864e12),
    "rtx4090": Device("NVIDIA RTX 4090 24 GB", 23.5, 165e12, 1.008e12),
    "cpu": Device("CPU, one core a stage", 0.0, 5e10, 2e10),
}

GPUS_A_MACHINE = 8
"""GPUs of each machine in the table of `rloop plan`."""
TRAINING_EFFICIENCY = 0.31
"""Share of a GPU's peak that forward and backward reach: measured on one H100 in the updates of an RL step, a 1.5 B
Qwen2 with gradient checkpointing, 25,000 tokens/s (docs/results/2026-11-23-gpu.md)."""
GENERATE_SECONDS_A_LAYER = 3.0e-3
"""One decoding step of transformers' `generate`, per layer, limited by the host: measured on one H200, a 0.5 B Qwen2 of
24 layers, batch 256, 3,560 tokens/s, so 72 ms a step."""
BANDWIDTH_EFFICIENCY = 0.6
"""Share of the memory bandwidth that decoding reaches. Assumed."""
CPU_GENERATE_PARAMETER_TOKENS = 7e9
"""Parameters x tokens a second of `generate` on a CPU core: measured 7,000 tokens/s with a policy of 1 M parameters."""
CPU_GENERATE_TOKENS = 16_000
"""Most tokens a second of any policy on the CPU, however small: 256 x 64 tokens in about a second (measured)."""
VLLM_HOST_SECONDS_A_SEQUENCE = 3.6e-5
"""The host's time per sequence in a decoding step of vLLM: measured on one H200 with vLLM 0.26, 512 sequences x 512
tokens, 28,900 tokens/s with a 7.6 B Qwen2 and 27,000 with one of 0.5 B, so about 18 ms a step of 512 for both."""
VLLM_EFFICIENCY = 0.5
"""Share of a GPU's peak that vLLM's decoding reaches at most. Assumed; the 7.6 B Qwen2 above reached 0.44."""
VLLM_SEQUENCES = 512
"""Sequences that vLLM works on at a time, as in the measurement; its cache is assumed to hold them."""
VLLM_START_SECONDS = 100.0
"""Start of the engine: measured 48 to 150 s."""
_ROWS_A_SECOND = 200_000


def stage_hours(config: Config, shape: ModelShape, work: Workload, device: Device, devices: int) -> dict[str, float]:
    """Return the hours of each stage in one iteration; `evaluate` is of one policy."""
    explore = config.explore
    budget, batch = explore.max_completion_tokens, config.placement.generation_batch
    tokens = work.prompt_tokens + work.completion_tokens
    served = asks_server(config)
    share = explore.rollouts_per_step / (1 if served else devices)
    together = generated_together(config, devices)
    sampling = sampling_seconds(config, "explore", shape, device, share, together, budget)
    update = training_seconds(shape, device, update_passes(config), explore.rollouts_per_step * tokens, devices)
    engines = sampling_engines(config, devices, on_cpu=device.is_cpu)
    harvest = 2 * work.rollouts / _ROWS_A_SECOND
    if work.snapshot_rollouts:
        snapshots = work.snapshots if config.harvest.snapshots == "all" else 1
        share = _busiest_share(work.snapshot_rollouts / work.snapshots, engines, batch) * snapshots
        harvest += sampling_seconds(config, "harvest", shape, device, share, batch, budget)
        harvest += VLLM_START_SECONDS * snapshots if uses_vllm(config, "harvest") else 0
    trained = config.rft.epochs * (work.expert_at_most or 0) * tokens
    starts = VLLM_START_SECONDS if uses_vllm(config, "explore") and not served else 0
    seconds = {
        "explore: sampling": explore.steps * sampling + starts,
        "explore: updates": explore.steps * update,
        "harvest": harvest,
        "filter": work.rollouts / _ROWS_A_SECOND,
        "rft (at most)": training_seconds(shape, device, _learning_passes(config), trained, devices),
    }
    if config.evaluate.sets:
        seconds["evaluate"] = VLLM_START_SECONDS if uses_vllm(config, "evaluate") else 0
        seconds["evaluate"] += sum(
            sampling_seconds(config, "evaluate", shape, device, _busiest_share(count or 0, engines, batch), batch, most)
            for count, most in ((count, work.evaluation_budgets[label]) for label, count in work.evaluated.items())
        )
    return {name: value / 3600 for name, value in seconds.items()}


def update_passes(config: Config) -> int:
    """Return the FLOP a parameter and token of explore's updates.

    Off-policy updates need one more forward pass for the sampling policy's log-probabilities.
    """
    explore = config.explore
    return _learning_passes(config) + 2 * (explore.updates_per_step > 1) + 2 * config.placement.gradient_checkpointing


def _learning_passes(config: Config) -> int:
    """Return the FLOP of forward and backward; with adapters the gradients of frozen weights are skipped."""
    return 4 if config.lora.enabled else 6


def sampling_engines(config: Config, devices: int, *, on_cpu: bool = False) -> int:
    """Return the number of engines that share harvest's and evaluate's batches on one machine; transformers has one."""
    if on_cpu or not uses_vllm(config, "evaluate"):
        return config.placement.engines or 1
    most = max(1, min(devices, GPUS_A_MACHINE) // config.placement.vllm.tensor_parallel)
    return min(config.placement.engines or most, most)


def _busiest_share(sequences: float, engines: int, batch: int) -> float:
    """Return the completions that the busiest engine samples; one engine samples a batch."""
    batches = -(-sequences // batch)
    return min(sequences, -(-batches // engines) * batch)


def total_hours(config: Config, work: Workload, hours: dict[str, float]) -> float:
    """Return the hours of the whole run, its stages one after the other."""
    total = config.iterations * sum(value for name, value in hours.items() if name != "evaluate")
    return total + work.policies_evaluated * hours.get("evaluate", 0.0)


def sampling_seconds(
    config: Config, stage: str, shape: ModelShape, device: Device, sequences: float, batch: int, budget: int
) -> float:
    """Return the seconds that a stage's engine takes for so many completions on one device."""
    if not uses_vllm(config, stage):
        return generation_seconds(shape, device, sequences, batch, config, budget)
    prompt = min(MEAN_PROMPT, config.prompt.max_tokens)
    in_flight = max(1, min(VLLM_SEQUENCES, round(sequences)))
    rate = vllm_tokens_per_second(shape, device, in_flight, prompt + MEAN_SHARE * budget, element_bytes(config))
    return sequences * MEAN_SHARE * budget / rate


def vllm_tokens_per_second(shape: ModelShape, device: Device, sequences: int, length: float, element: int) -> float:
    """Return vLLM's completion tokens a second with so many sequences in flight, of `length` tokens at their end."""
    if device.is_cpu:
        return 2 * cpu_tokens_per_second(shape)  # measured: 14,300 against 7,000
    return sequences / vllm_step_seconds(shape, device, sequences, sequences * length / 2, element)


def vllm_step_seconds(shape: ModelShape, device: Device, sequences: int, cached: float, element: int) -> float:
    """Return the seconds of one of vLLM's decoding steps on a GPU, with `cached` tokens of all sequences in its cache.

    It takes the longest of: the host's work on its sequences, reading weights and cache, and computing.
    """
    cache = cached * shape.kv_bytes_per_token(element)
    reading = (shape.parameters * element + cache) / (device.bandwidth * BANDWIDTH_EFFICIENCY)
    computing = 2 * shape.parameters * sequences / (device.flops * VLLM_EFFICIENCY)
    return max(sequences * VLLM_HOST_SECONDS_A_SEQUENCE, reading, computing)


def cpu_tokens_per_second(shape: ModelShape) -> float:
    """Return the completion tokens a second of `generate` on a CPU core."""
    return min(CPU_GENERATE_TOKENS, CPU_GENERATE_PARAMETER_TOKENS / shape.parameters)


def generation_seconds(
    shape: ModelShape, device: Device, sequences: float, batch: int, config: Config, budget: int
) -> float:
    """Return the seconds of transformers' `generate`: a batch takes as many steps as its longest completion has tokens.

    A step takes the longest of: launching its kernels (measured), reading weights and cache, and computing.
    """
    if not sequences:
        return 0.0
    batch = min(batch, max(1, round(sequences)))
    if device.is_cpu:
        return sequences * budget / cpu_tokens_per_second(shape)
    element = element_bytes(config)
    cache = batch * (config.prompt.max_tokens + budget / 2) * shape.kv_bytes_per_token(element)
    reading = (shape.parameters * element + cache) / (device.bandwidth * BANDWIDTH_EFFICIENCY)
    computing = 2 * shape.parameters * batch / (device.flops * TRAINING_EFFICIENCY)
    step = max(shape.layers * GENERATE_SECONDS_A_LAYER, reading, computing)
    return -(-sequences // batch) * budget * step


def training_seconds(shape: ModelShape, device: Device, passes: int, tokens: float, devices: int) -> float:
    """Return the seconds of `passes` x parameters FLOP per token (2 forward, 4 backward)."""
    rate = device.flops if device.is_cpu else device.flops * TRAINING_EFFICIENCY
    return passes * shape.parameters * tokens / (rate * devices)
