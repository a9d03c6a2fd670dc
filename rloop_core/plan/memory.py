"""Memory of one device in each heavy stage, and the tokens of a forward-backward pass that fits."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from rloop_core.config import Config
from rloop_core.plan.models import ModelShape, element_bytes
from rloop_core.plan.sharding import Sharding, sharding_named, training_states
from rloop_core.rollout.available import uses_vllm
from rloop_core.rollout.vllm_server import asks_server

GIB = 2**30
USABLE = 0.95
"""Share of a device's memory to plan with; the rest is for gaps of the allocator and for CUDA."""
HEAD_TOKENS, HEAD_COLUMNS = 4096, 32768
"""Tokens and words of one tile of the head's scores; TRL's fused head never computes those of a whole batch."""
MOST_PASS_TOKENS = 65_536
"""Most tokens of a pass where the config leaves the number open: longer ones gain nothing."""
SHARD = (
    "share the training states among devices (placement.processes, and infra/accelerate/zero2.yaml or zero3.yaml as "
    "placement.accelerate_config), keep them in host memory (infra/accelerate/zero2-offload.yaml), or train adapters "
    "(lora.rank)"
)


@dataclass(frozen=True)
class StageMemory:
    """The peak of one stage on one device."""

    stage: str
    """explore, rft or evaluate."""
    parts: dict[str, float]
    """Bytes by kind."""
    states: float
    """Bytes of weights, gradients and optimizer, which are there all the time; 0 outside training."""
    available: float
    """Bytes of the device."""
    lower: str
    """What to change if the states fit and the peak does not."""

    @property
    def needed(self) -> float:
        """Bytes at the peak."""
        return sum(self.parts.values())

    @property
    def fits(self) -> bool:
        """True if the peak is within the device."""
        return self.needed <= self.available

    @property
    def fix(self) -> str:
        """What makes the stage smaller."""
        return SHARD if self.states > self.available else self.lower


def stage_memories(config: Config, shape: ModelShape, available: float, devices: int) -> list[StageMemory]:
    """Return the peaks of explore, rft and evaluate.

    Args:
        config: The run's config.
        shape: The policy's sizes.
        available: Bytes of one device.
        devices: Number of devices.
    """
    model = _Model(config, shape, available, devices)
    return [model.explore(), model.rft(), *([model.evaluate()] if config.evaluate.sets else [])]


def micro_batch_tokens(config: Config, shape: ModelShape, available: float, devices: int) -> int:
    """Return the tokens of one forward-backward pass: the config's, or as many as fit beside the training states."""
    return _Model(config, shape, available, devices).pass_tokens


def sharding_of(config: Config, devices: int) -> Sharding:
    """Return the sharding of `placement.accelerate_config`; without it every device holds the whole states."""
    return sharding_named(config) or Sharding("one device" if devices == 1 else "DDP")


def placed(config: Config, **fields: Any) -> Config:
    """Return the config with other placement fields."""
    return config.model_copy(update={"placement": config.placement.model_copy(update=fields)})


@dataclass(frozen=True)
class _Model:
    """A config on devices of one kind."""

    config: Config
    shape: ModelShape
    available: float
    devices: int

    @cached_property
    def way(self) -> Sharding:
        return sharding_of(self.config, self.devices)

    @cached_property
    def states(self) -> dict[str, float]:
        return training_states(self.config, self.shape, self.way, self.devices)

    @property
    def weights(self) -> float:
        """Bytes of the whole weights in the policy's precision."""
        return float(element_bytes(self.config) * self.shape.parameters)

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt and completion."""
        return self.config.prompt.max_tokens + self.config.explore.max_completion_tokens

    @cached_property
    def pass_tokens(self) -> int:
        room = self.available - sum(self.states.values()) - self._pass(HEAD_TOKENS)["head"]
        fitting = int(room / self._pass(1)["activations"])
        return max(self.longest, self.config.placement.micro_batch_tokens or min(fitting, MOST_PASS_TOKENS))

    def explore(self) -> StageMemory:
        """Return the larger of a pass and of sampling, beside the states."""
        passes = self._pass_of(self.config.explore.mini_batch_rollouts)
        sampling, field = self._sampling()
        larger = max(passes, sampling, key=lambda parts: sum(parts.values()))
        return self._training("explore", larger, f"placement.micro_batch_tokens or {field}")

    def rft(self) -> StageMemory:
        passes = self._pass_of(self.config.rft.batch_trajectories)
        return self._training("rft", passes, "placement.micro_batch_tokens")

    def evaluate(self) -> StageMemory:
        """Return the memory of one engine on one device; with tensor parallelism, its part of weights and cache."""
        placement, sequence = self.config.placement, self._sequence_bytes(self.config.longest_evaluation)
        if uses_vllm(self.config, "evaluate"):
            least = (self.weights + sequence) / placement.vllm.tensor_parallel
            parts = {"vLLM": max(placement.vllm.memory * self.available, least)}
            return StageMemory("evaluate", parts, 0.0, self.available, "raise placement.vllm.tensor_parallel")
        parts = {"weights": self.weights, "key-value cache": float(placement.generation_batch * sequence)}
        return StageMemory("evaluate", parts, 0.0, self.available, "lower placement.generation_batch")

    def _training(self, stage: str, parts: dict[str, float], field: str) -> StageMemory:
        lower = f"lower {field}, set placement.gradient_checkpointing to true, or {SHARD}"
        return StageMemory(stage, {**self.states, **parts}, sum(self.states.values()), self.available, lower)

    def _sequence_bytes(self, completion: int) -> int:
        length = self.config.prompt.max_tokens + completion
        return length * self.shape.kv_bytes_per_token(element_bytes(self.config))

    def _pass_of(self, rows: int) -> dict[str, float]:
        """Return the memory of the largest pass of an update of so many rows on all devices."""
        return self._pass(min(self.pass_tokens, max(1, rows // self.devices) * self.longest))

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

    def _sampling(self) -> tuple[dict[str, float], str]:
        """Return what exploration's engine needs beside the states, and the field that bounds it.

        `generate` needs a cache, and whole weights if they are sharded. vLLM takes a fixed share of the device, which
        must hold its own weights and some cache. It starts while every device still holds the policy as it was loaded:
        whole, and in float32 without adapters. A server needs nothing here.
        """
        config, placement = self.config, self.config.placement
        sequence = self._sequence_bytes(config.explore.max_completion_tokens)
        if asks_server(config):
            return {}, "placement.generation_batch"
        if uses_vllm(config, "explore"):
            loaded = (element_bytes(config) if config.lora.enabled else 4) * self.shape.parameters
            beside = max(0.0, loaded - sum(self.states.values()))
            vllm = max(placement.vllm.colocated_memory * self.available, self.weights + 16 * sequence)
            return {"vLLM": vllm, "loaded weights": beside}, "placement.vllm.colocated_memory"
        together = min(placement.generation_batch, -(-config.explore.rollouts_per_step // self.devices))
        whole = self.weights if self.way.weights else 0.0
        return {"key-value cache": float(together * sequence), "whole weights": whole}, "placement.generation_batch"
