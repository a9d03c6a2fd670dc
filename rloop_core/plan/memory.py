"""Memory of one device in each heavy stage, and which setting makes it fit."""

from __future__ import annotations

from dataclasses import dataclass

from rloop_core.config import Config
from rloop_core.plan.models import ModelShape

GIB = 2**30
STATE_BYTES = 16
"""Bytes a parameter while training: float32 master weight 4, gradient 4, AdamW's two moments 8."""


@dataclass(frozen=True)
class StageMemory:
    """One stage on one device.

    Attributes:
        stage: explore, rft or evaluate.
        parts: Bytes by kind, those that are there at the same time.
        available: Bytes of the device.
        fixes: Settings that make it fit, or what else would; empty when it fits.
    """

    stage: str
    parts: dict[str, float]
    available: float
    fixes: tuple[str, ...]

    @property
    def needed(self) -> float:
        """Bytes at the peak."""
        return sum(self.parts.values())

    @property
    def fits(self) -> bool:
        """Whether the peak is within the device."""
        return self.needed <= self.available


def stage_memories(config: Config, shape: ModelShape, available: float, devices: int) -> list[StageMemory]:
    """Peaks of explore, rft and evaluate; training states are shared among `devices` (ZeRO-3)."""
    stages = [_explore(config, shape, available, devices), _rft(config, shape, available, devices)]
    return [*stages, _evaluate(config, shape, available)] if config.evaluate.sets else stages


def fewest_devices(config: Config, shape: ModelShape, available: float) -> int:
    """The smallest power of two of devices that hold the training states and a pass of one sequence; 1 if none does."""
    one = sum(activation_bytes(config, shape, 1).values())
    counts = (1, 2, 4, 8, 16, 32, 64)
    return next((n for n in counts if sum(_states(config, shape, n).values()) + one <= available), 1)


def generated_together(config: Config, devices: int) -> int:
    """Rollouts of one RL step that a device generates at a time."""
    return min(config.placement.generation_batch, -(-config.explore.rollouts_per_step // devices))


def activation_bytes(config: Config, shape: ModelShape, sequences: int) -> dict[str, float]:
    """Activations and logits of one forward-backward pass.

    A layer keeps about 10 h + 4 m values a token (norms, q, k, v, attention, residuals; the gated MLP); with gradient
    checkpointing only its input, and one layer at a time whole. Logits and their gradient are float32.
    """
    element = _element(config)
    completion = config.explore.max_completion_tokens
    tokens = sequences * (config.prompt.max_tokens + completion)
    layer = (10 * shape.hidden + 4 * shape.intermediate) * element
    kept = (
        shape.layers * shape.hidden * element + layer
        if config.placement.gradient_checkpointing
        else shape.layers * layer
    )
    return {"activations": tokens * kept, "logits": sequences * completion * shape.vocab * 4 * 2}


def _explore(config: Config, shape: ModelShape, available: float, devices: int) -> StageMemory:
    states = _states(config, shape, devices)
    micro = config.placement.micro_batch_rollouts or config.explore.mini_batch_rollouts // devices or 1
    passes = activation_bytes(config, shape, micro)
    one = _sequence_bytes(config, shape, config.explore.max_completion_tokens)
    together = generated_together(config, devices)
    fixes = list(_pass_fixes(config, shape, available, states, micro, "placement.micro_batch_rollouts"))
    room = available - sum(states.values())
    if one <= room < together * one:
        fixes.append(f"set placement.generation_batch to at most {int(room // one)} (changes no result's definition)")
    cache = {"key-value cache": together * one}
    larger = passes if sum(passes.values()) > sum(cache.values()) else cache
    return StageMemory("explore", {**states, **larger}, available, tuple(fixes))


def _rft(config: Config, shape: ModelShape, available: float, devices: int) -> StageMemory:
    states = _states(config, shape, devices)
    micro = config.placement.micro_batch_trajectories or config.rft.batch_trajectories
    fixes = _pass_fixes(config, shape, available, states, micro, "placement.micro_batch_trajectories")
    return StageMemory("rft", {**states, **activation_bytes(config, shape, micro)}, available, tuple(fixes))


def _evaluate(config: Config, shape: ModelShape, available: float) -> StageMemory:
    weights = {"weights": float(shape.parameters * _element(config))}
    one = _sequence_bytes(config, shape, config.longest_evaluation)
    batch = config.placement.generation_batch
    room = available - sum(weights.values())
    fixes: list[str] = []
    if room < one:
        fixes.append("the weights alone fill the device: set policy.dtype to bfloat16, or take a larger device")
    elif batch * one > room:
        fixes.append(f"set placement.generation_batch to at most {int(room // one)}")
    return StageMemory("evaluate", {**weights, "key-value cache": batch * one}, available, tuple(fixes))


def _pass_fixes(
    config: Config, shape: ModelShape, available: float, states: dict[str, float], micro: int, setting: str
) -> list[str]:
    """What makes a forward-backward pass fit beside the states."""
    room = available - sum(states.values())
    smallest = sum(activation_bytes(config, shape, 1).values())
    if room < smallest:
        copy = sum(states.values()) - states["weights, gradients, AdamW"]
        sharable = STATE_BYTES * shape.parameters
        spare = available - copy - smallest
        words = f"{sharable / GIB:,.0f} GiB of weights, gradients and AdamW states"
        if not config.placement.gradient_checkpointing and room > 0:
            return ["set placement.gradient_checkpointing to true"]
        if spare <= 0:
            return [f"{words} and a pass of one sequence: take larger devices, or a smaller policy"]
        devices = -(-sharable // int(spare))
        return [f"{words}: share them among at least {devices} devices (--gpus), or take a smaller policy"]
    if micro * smallest > room:
        whole = config.explore.mini_batch_rollouts if setting.endswith("rollouts") else config.rft.batch_trajectories
        most = int(room // smallest)
        fitting = max(count for count in range(1, min(most, whole) + 1) if whole % count == 0)
        return [f"set {setting} to {fitting} (changes no result's definition)"]
    return []


def _states(config: Config, shape: ModelShape, devices: int) -> dict[str, float]:
    states = {"weights, gradients, AdamW": STATE_BYTES * shape.parameters / devices}
    if config.policy.dtype == "bfloat16":
        states["bfloat16 copy"] = 2.0 * shape.parameters
    return states


def _sequence_bytes(config: Config, shape: ModelShape, completion: int) -> int:
    return (config.prompt.max_tokens + completion) * shape.kv_bytes_per_token(_element(config))


def _element(config: Config) -> int:
    return 2 if config.policy.dtype == "bfloat16" else 4
