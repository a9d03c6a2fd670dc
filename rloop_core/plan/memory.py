"""Memory of one device in each heavy stage, and the settings that make it fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from rloop_core.config import Config
from rloop_core.plan.models import ModelShape, element_bytes
from rloop_core.plan.sharding import DDP, ONE, ZERO3, Sharding, ladder, sharding_named, training_states
from rloop_core.rollout.available import uses_vllm
from rloop_core.rollout.vllm_server import asks_server

GIB = 2**30
USABLE = 0.95
"""Share of a device's memory to plan with; the rest is for gaps of the allocator and for CUDA."""
HEAD_TOKENS, HEAD_COLUMNS = 4096, 32768
"""Tokens and words of one tile of the head's scores; TRL's fused head never computes those of a whole batch."""
MOST_PASS_TOKENS = 65_536
"""Most tokens of a pass where the config leaves the number open: longer ones gain nothing."""
COUNTS = (1, 2, 4, 8, 16, 32, 64)
"""Numbers of devices to choose from."""


@dataclass(frozen=True)
class StageMemory:
    """One stage on one device.

    Attributes:
        stage: explore, rft or evaluate.
        parts: Bytes by kind at the peak.
        states: Bytes of weights, gradients and optimizer, which are there all the time; 0 outside training.
        available: Bytes of the device.
        fixes: What makes it fit; empty if it fits.
    """

    stage: str
    parts: dict[str, float]
    states: float
    available: float
    fixes: tuple[str, ...]

    @property
    def needed(self) -> float:
        """Bytes at the peak."""
        return sum(self.parts.values())

    @property
    def fits(self) -> bool:
        """True if the peak is within the device."""
        return self.needed <= self.available


def stage_memories(
    config: Config, shape: ModelShape, available: float, devices: int, way: Sharding | None = None
) -> list[StageMemory]:
    """Return the peaks of explore, rft and evaluate.

    Args:
        config: The run's config.
        shape: The policy's sizes.
        available: Bytes of one device.
        devices: Number of devices.
        way: How training states are sharded; None takes that of `sharding_of`.
    """
    setup = _Setup(config, shape, available, devices, way or sharding_of(config, shape, available, devices))
    return [setup.explore(), setup.rft(), *([setup.evaluate()] if config.evaluate.sets else [])]


def sharding_of(config: Config, shape: ModelShape, available: float, devices: int) -> Sharding:
    """Return the config's sharding, or else the fastest with which the config fits as it is.

    If none fits, the fastest that leaves room for smaller batches. One device shards nothing: host memory is used only
    if the config asks for it.
    """
    if (named := sharding_named(config)) is not None:
        return named
    ways = (ONE,) if devices == 1 else ladder(devices)[:3]
    setups = [_Setup(config, shape, available, devices, way) for way in ways]
    fitting = (setup.way for setup in setups if setup.fits())
    roomy = (setup.way for setup in setups if setup.leaves_room())
    checkpointing = (setup.way for setup in setups if setup.with_checkpointing().leaves_room())
    return next(fitting, None) or next(roomy, None) or next(checkpointing, ways[-1])


def micro_batch_tokens(config: Config, shape: ModelShape, available: float, devices: int) -> int:
    """Return the tokens of one forward-backward pass: the config's, or as many as fit beside the training states."""
    way = sharding_of(config, shape, available, devices)
    return _Setup(config, shape, available, devices, way).pass_tokens


def fewest_devices(config: Config, shape: ModelShape, available: float) -> int:
    """Return the fewest devices of `COUNTS` that hold the training states, and one sequence beside them; else 1."""
    setups = [_Setup(config, shape, available, n, sharding_of(config, shape, available, n)) for n in COUNTS]
    return next((setup.devices for setup in setups if setup.leaves_room()), 1)


def generated_together(config: Config, devices: int) -> int:
    """Return the rollouts of one RL step that a device generates at a time."""
    return min(config.placement.generation_batch, -(-config.explore.rollouts_per_step // devices))


def placed(config: Config, **fields: Any) -> Config:
    """Return the config with other placement fields."""
    return config.model_copy(update={"placement": config.placement.model_copy(update=fields)})


@dataclass(frozen=True)
class _Setup:
    """A config on devices of one kind, and a way to shard training states among them."""

    config: Config
    shape: ModelShape
    available: float
    devices: int
    way: Sharding

    @cached_property
    def states(self) -> dict[str, float]:
        return training_states(self.config, self.shape, self.way, self.devices)

    @property
    def states_total(self) -> float:
        return sum(self.states.values())

    @property
    def weights(self) -> float:
        """Bytes of the whole weights in the policy's precision."""
        return float(element_bytes(self.config) * self.shape.parameters)

    def with_checkpointing(self) -> _Setup:
        return replace(self, config=placed(self.config, gradient_checkpointing=True))

    def fits(self) -> bool:
        return self.explore().fits and self.rft().fits

    def leaves_room(self) -> bool:
        """Return True if a pass of one sequence, and one sequence's generation, fit together with the states."""
        generation = 0.0
        if not asks_server(self.config):
            generation = self._sequence_bytes(self.config.explore.max_completion_tokens)
            generation += self.weights if self.way.weights or uses_vllm(self.config, "explore") else 0
        return self.states_total + max(sum(self._pass(self._longest).values()), generation) <= self.available

    @property
    def _longest(self) -> int:
        """Tokens of the longest prompt and completion."""
        return self.config.prompt.max_tokens + self.config.explore.max_completion_tokens

    @cached_property
    def pass_tokens(self) -> int:
        return max(self._longest, self.config.placement.micro_batch_tokens or min(self._room, MOST_PASS_TOKENS))

    @cached_property
    def _room(self) -> int:
        """Tokens of the longest pass that fits beside the states; at most 0 if none does."""
        room = self.available - self.states_total - self._pass(HEAD_TOKENS)["head"]
        return int(room / self._pass(1)["activations"])

    def explore(self) -> StageMemory:
        passes = self._pass_of(self.config.explore.mini_batch_rollouts)
        if asks_server(self.config):
            generation, fixes = dict[str, float](), list[str]()
        else:
            generation, fixes = self._vllm() if uses_vllm(self.config, "explore") else self._generate()
        larger = passes if sum(passes.values()) > sum(generation.values()) else generation
        return self._stage(
            "explore",
            {**self.states, **larger},
            lambda: [*self._pass_fixes(passes), *fixes],
        )

    def rft(self) -> StageMemory:
        passes = self._pass_of(self.config.rft.batch_trajectories)
        return self._stage("rft", {**self.states, **passes}, lambda: self._pass_fixes(passes))

    def evaluate(self) -> StageMemory:
        """Return the memory of one engine on one device; with tensor parallelism, its part of weights and cache."""
        placement, sequence = self.config.placement, self._sequence_bytes(self.config.longest_evaluation)
        if uses_vllm(self.config, "evaluate"):
            width = placement.vllm.tensor_parallel
            enough = next((n for n in (2, 4, 8) if n > width and (self.weights + sequence) / n <= self.available), 0)
            fix = f"set placement.vllm.tensor_parallel to {enough}" if enough else "take larger devices"
            needed = max(placement.vllm.memory * self.available, (self.weights + sequence) / width)
            return self._stage("evaluate", {"vLLM": needed}, lambda: [fix])
        room = self.available - self.weights
        if room < sequence:
            fix = "the weights alone fill the device: set policy.dtype to bfloat16, or take a larger device"
        else:
            fix = f"set placement.generation_batch to at most {int(room // sequence)}"
        cache = float(placement.generation_batch * sequence)
        return self._stage("evaluate", {"weights": self.weights, "key-value cache": cache}, lambda: [fix])

    def _stage(self, stage: str, parts: dict[str, float], fixes: Callable[[], list[str]]) -> StageMemory:
        fits = sum(parts.values()) <= self.available
        states = 0.0 if stage == "evaluate" else self.states_total
        return StageMemory(stage, parts, states, self.available, () if fits else tuple(fixes()))

    def _sequence_bytes(self, completion: int) -> int:
        length = self.config.prompt.max_tokens + completion
        return length * self.shape.kv_bytes_per_token(element_bytes(self.config))

    def _pass_of(self, rows: int) -> dict[str, float]:
        """Return the memory of the largest pass of an update of so many rows on all devices."""
        return self._pass(min(self.pass_tokens, max(1, rows // self.devices) * self._longest))

    def _pass(self, tokens: int) -> dict[str, float]:
        """Return the activations of one forward-backward pass and the head's scores, in bytes.

        A layer keeps about 10 h + 4 m values per token (norms, q, k, v, attention, residuals; the gated MLP); adapters
        add few. With gradient checkpointing each layer keeps its input, and one layer at a time all values.
        """
        config, shape, element = self.config, self.shape, element_bytes(self.config)
        layer = (10 * shape.hidden + 4 * shape.intermediate) * element
        kept = shape.layers * layer
        if config.placement.gradient_checkpointing:
            kept = shape.layers * shape.hidden * element + layer
        scores = min(tokens, HEAD_TOKENS) * min(shape.vocab, HEAD_COLUMNS) * element
        scores += 0 if config.lora.enabled else 4 * shape.vocab * shape.hidden  # the weights' gradient in float32
        return {"activations": tokens * kept, "head": float(scores)}

    def _generate(self) -> tuple[dict[str, float], list[str]]:
        """Return what `generate` needs in addition to the states: the cache, and whole weights if they are sharded."""
        sequence = self._sequence_bytes(self.config.explore.max_completion_tokens)
        together = generated_together(self.config, self.devices)
        parts = {"key-value cache": float(together * sequence)}
        if self.way.weights:
            parts["whole weights"] = self.weights
        room = self.available - self.states_total - parts.get("whole weights", 0.0)
        fixes = []
        if sequence <= room < together * sequence:
            most = int(room // sequence)
            fixes.append(f"set placement.generation_batch to at most {most} (changes no result's definition)")
        elif room < sequence and self.states_total < self.available:
            fixes.append(
                "whole weights do not fit together with the states during generation: take more devices, or lora.rank"
            )
        return parts, fixes

    def _vllm(self) -> tuple[dict[str, float], list[str]]:
        """Return vLLM's fixed share of the device, which must hold its own weights and some cache.

        vLLM starts while every device still holds the policy as it was loaded: whole, and in float32 without adapters.
        """
        share = self.config.placement.vllm.colocated_memory
        loaded = (element_bytes(self.config) if self.config.lora.enabled else 4) * self.shape.parameters
        beside = max(self.states_total, float(loaded))
        cache = 16 * self._sequence_bytes(self.config.explore.max_completion_tokens)
        least = (self.weights + cache) / self.available
        most = 1 - beside / self.available
        fixes = []
        if least > most and beside > self.states_total:
            fixes.append("vLLM does not fit beside the policy as it is loaded: set placement.vllm.server, or lora.rank")
        elif least > most:
            fixes.append("vLLM's own weights do not fit together with the states: share the states among more devices")
        elif not least <= share <= most:
            fixes.append(f"set placement.vllm.colocated_memory to between {least:.2f} and {most:.2f}")
        parts = {"vLLM": max(share, least) * self.available, "loaded weights": beside - self.states_total}
        return {name: size for name, size in parts.items() if size}, fixes

    def _pass_fixes(self, passes: dict[str, float]) -> list[str]:
        """Return what makes a pass fit beside the states."""
        if self._room < self._longest:
            return self._state_fixes()
        if sum(passes.values()) <= self.available - self.states_total:
            return []
        return [f"set placement.micro_batch_tokens to {self._room} (changes no result's definition)"]

    def _state_fixes(self) -> list[str]:
        """Return what makes the states fit: another sharding, adapters, more devices; each is tried."""
        config = self.config
        if not config.placement.gradient_checkpointing and self.states_total < self.available:
            return ["set placement.gradient_checkpointing to true"]
        lean = self.with_checkpointing()
        fixes = [
            f"set placement.accelerate_config to {way.file} ({way.name})"
            for way in ladder(self.devices)
            if way.file and replace(lean, way=way).leaves_room()
        ][:1]
        adapters = lean.config.model_copy(update={"lora": config.lora.model_copy(update={"rank": 32})})
        if not config.lora.enabled and replace(lean, config=adapters, way=DDP).leaves_room():
            fixes.append("set lora.rank to 32 (adapters: another computation)")
        states = f"{self.states_total / GIB:,.0f} GiB of weights, gradients and AdamW states"
        more = (n for n in COUNTS if n > self.devices and replace(lean, devices=n, way=ZERO3).leaves_room())
        if enough := next(more, 0):
            return [*fixes, f"{states}: share them among at least {enough} devices (--gpus), or take a smaller policy"]
        return fixes or [f"{states} and a pass of one sequence: take larger devices, or a smaller policy"]
