"""Hours of each stage, from counts, the policy's shape and the device's constants."""

from __future__ import annotations

from rloop_core.config import Config
from rloop_core.plan import devices as constants
from rloop_core.plan.devices import Device
from rloop_core.plan.memory import generated_together, uses_vllm
from rloop_core.plan.models import ModelShape
from rloop_core.plan.workload import MEAN_PROMPT, MEAN_SHARE, Workload
from rloop_core.rollout.vllm_server import asks_server

VLLM_SEQUENCES = 512
"""Sequences that vLLM works on at a time, as where it was measured; its cache is taken to hold them."""
VLLM_START_SECONDS = 100.0
"""Start of the engine: measured 48 to 150 s."""
_ROWS_A_SECOND = 200_000


def stage_hours(config: Config, shape: ModelShape, work: Workload, device: Device, devices: int) -> dict[str, float]:
    """Hours of one iteration by stage; `evaluate` is one policy's."""
    explore = config.explore
    tokens = work.prompt_tokens + work.completion_tokens
    served = asks_server(config)
    share = explore.rollouts_per_step / (1 if served else devices)
    together = generated_together(config, devices)
    sampling = sampling_seconds(config, "explore", shape, device, share, together, explore.max_completion_tokens)
    # Off-policy updates need the log-probabilities of the policy that sampled: one more forward pass. Under adapters
    # the backward pass leaves the gradients of frozen weights out.
    learning = 4 if config.lora.enabled else 6
    passes = (
        learning + (2 if explore.updates_per_step > 1 else 0) + (2 if config.placement.gradient_checkpointing else 0)
    )
    update = training_seconds(shape, device, passes, explore.rollouts_per_step * tokens, devices)
    harvest = 2 * work.rollouts / _ROWS_A_SECOND
    batch = config.placement.generation_batch
    engines = drawing_engines(config, devices, on_cpu=device.name == constants.DEVICES["cpu"].name)
    if work.snapshot_rollouts:
        snapshots = work.snapshots if config.harvest.snapshots == "all" else 1
        share = _share(work.snapshot_rollouts / work.snapshots, engines, batch) * snapshots
        harvest += sampling_seconds(config, "harvest", shape, device, share, batch, explore.max_completion_tokens)
        harvest += VLLM_START_SECONDS * snapshots if uses_vllm(config, "harvest") else 0
    trained = config.rft.epochs * (work.expert_at_most or 0) * tokens
    rft = training_seconds(shape, device, learning, trained, devices)
    starts = VLLM_START_SECONDS if uses_vllm(config, "explore") and not served else 0
    seconds = {
        "explore: sampling": explore.steps * sampling + starts,
        "explore: updates": explore.steps * update,
        "harvest": harvest,
        "filter": work.rollouts / _ROWS_A_SECOND,
        "rft (at most)": rft,
    }
    if config.evaluate.sets:
        budgets = work.evaluation_budgets
        seconds["evaluate"] = sum(
            sampling_seconds(
                config, "evaluate", shape, device, _share(count or 0, engines, batch), batch, budgets[label]
            )
            for label, count in work.evaluated.items()
        ) + (VLLM_START_SECONDS if uses_vllm(config, "evaluate") else 0)
    return {name: value / 3600 for name, value in seconds.items()}


def drawing_engines(config: Config, devices: int, *, on_cpu: bool = False) -> int:
    """Engines that share the batches of harvest and evaluate on one machine; of transformers there is one."""
    if on_cpu or config.placement.engine != "vllm":
        return config.placement.engines or 1
    most = max(1, min(devices, constants.GPUS_A_MACHINE) // config.placement.vllm.tensor_parallel)
    return min(config.placement.engines or most, most)


def _share(sequences: float, engines: int, batch: int) -> float:
    """Completions that the busiest of the engines draws: a batch is drawn by one of them."""
    batches = -(-sequences // batch)
    return min(sequences, -(-batches // engines) * batch)


def total_hours(config: Config, work: Workload, hours: dict[str, float]) -> float:
    """Hours of the whole run, its stages one after the other."""
    total = config.iterations * sum(value for name, value in hours.items() if name != "evaluate")
    return total + work.policies_evaluated * hours.get("evaluate", 0.0)


def sampling_seconds(
    config: Config, stage: str, shape: ModelShape, device: Device, sequences: float, batch: int, budget: int
) -> float:
    """Seconds for so many completions of a stage on one device, by the engine that draws them."""
    if not uses_vllm(config, stage):
        return generation_seconds(shape, device, sequences, batch, config, budget)
    prompt = min(MEAN_PROMPT, config.prompt.max_tokens)
    flying = max(1, min(VLLM_SEQUENCES, round(sequences)))
    rate = vllm_tokens_per_second(shape, device, flying, prompt + MEAN_SHARE * budget, _element(config))
    return sequences * MEAN_SHARE * budget / rate


def vllm_tokens_per_second(shape: ModelShape, device: Device, sequences: int, length: float, element: int) -> float:
    """Completion tokens a second of vLLM with so many sequences at a time, of so many tokens at their end.

    A decoding step takes the longest of: the host's work on its sequences, reading weights and cache, and computing.
    """
    if device.name == constants.DEVICES["cpu"].name:
        return 2 * cpu_tokens_per_second(shape)  # measured: 14,300 against 7,000
    cache = sequences * length / 2 * shape.kv_bytes_per_token(element)
    reading = (shape.parameters * element + cache) / (device.bandwidth * constants.BANDWIDTH_EFFICIENCY)
    computing = 2 * shape.parameters * sequences / (device.flops * constants.VLLM_EFFICIENCY)
    return sequences / max(sequences * constants.VLLM_HOST_SECONDS_A_SEQUENCE, reading, computing)


def cpu_tokens_per_second(shape: ModelShape) -> float:
    """Completion tokens a second of `generate` on a CPU core."""
    return min(constants.CPU_GENERATE_TOKENS, constants.CPU_GENERATE_PARAMETER_TOKENS / shape.parameters)


def generation_seconds(
    shape: ModelShape, device: Device, sequences: float, batch: int, config: Config, budget: int
) -> float:
    """Seconds for transformers' `generate`: a batch takes as many decoding steps as its longest completion has tokens.

    A step takes the longest of: launching its kernels (measured), reading weights and cache, and computing.
    """
    if not sequences:
        return 0.0
    batch = min(batch, max(1, round(sequences)))
    if device.name == constants.DEVICES["cpu"].name:
        return sequences * budget / cpu_tokens_per_second(shape)
    element = _element(config)
    cache = batch * (config.prompt.max_tokens + budget / 2) * shape.kv_bytes_per_token(element)
    reading = (shape.parameters * element + cache) / (device.bandwidth * constants.BANDWIDTH_EFFICIENCY)
    computing = 2 * shape.parameters * batch / (device.flops * constants.TRAINING_EFFICIENCY)
    step = max(shape.layers * constants.GENERATE_SECONDS_A_LAYER, reading, computing)
    return -(-sequences // batch) * budget * step


def training_seconds(shape: ModelShape, device: Device, passes: int, tokens: float, devices: int) -> float:
    """`passes` x parameters FLOP a token (2 forward, 4 backward), at the efficiency that training reaches."""
    reached = (
        device.flops if device.name == constants.DEVICES["cpu"].name else device.flops * constants.TRAINING_EFFICIENCY
    )
    return passes * shape.parameters * tokens / (reached * devices)


def _element(config: Config) -> int:
    return 2 if config.policy.dtype == "bfloat16" else 4
