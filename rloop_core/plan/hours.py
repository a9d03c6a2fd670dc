"""Hours of each stage, from counts, the policy's shape and the device's constants."""

from __future__ import annotations

from rloop_core.config import Config
from rloop_core.plan import devices as constants
from rloop_core.plan.devices import Device
from rloop_core.plan.memory import generated_together
from rloop_core.plan.models import ModelShape
from rloop_core.plan.workload import Workload

_ROWS_A_SECOND = 200_000


def stage_hours(config: Config, shape: ModelShape, work: Workload, device: Device, devices: int) -> dict[str, float]:
    """Hours of one iteration by stage; `evaluate` is one policy's."""
    explore = config.explore
    tokens = work.prompt_tokens + work.completion_tokens
    share = explore.rollouts_per_step / devices
    together = generated_together(config, devices)
    sampling = generation_seconds(shape, device, share, together, config, explore.max_completion_tokens)
    # Off-policy updates need the log-probabilities of the policy that sampled: one more forward pass.
    passes = 6 + (2 if explore.updates_per_step > 1 else 0) + (2 if config.placement.gradient_checkpointing else 0)
    update = training_seconds(shape, device, passes, explore.rollouts_per_step * tokens, devices)
    harvest = 2 * work.rollouts / _ROWS_A_SECOND
    batch = config.placement.generation_batch
    if work.snapshot_rollouts:
        harvest += generation_seconds(
            shape, device, work.snapshot_rollouts, batch, config, explore.max_completion_tokens
        )
    rft = training_seconds(shape, device, 6, config.rft.epochs * (work.expert_at_most or 0) * tokens, devices)
    seconds = {
        "explore: sampling": explore.steps * sampling,
        "explore: updates": explore.steps * update,
        "harvest": harvest,
        "filter": work.rollouts / _ROWS_A_SECOND,
        "rft (at most)": rft,
    }
    if config.evaluate.sets:
        seconds["evaluate"] = sum(
            generation_seconds(shape, device, count or 0, batch, config, work.evaluation_budgets[label])
            for label, count in work.evaluated.items()
        )
    return {name: value / 3600 for name, value in seconds.items()}


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
        rate = min(constants.CPU_GENERATE_TOKENS, constants.CPU_GENERATE_PARAMETER_TOKENS / shape.parameters)
        return sequences * budget / rate
    element = 2 if config.policy.dtype == "bfloat16" else 4
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
