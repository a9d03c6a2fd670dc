"""Rollout engines in the config: their names, and what vLLM may take of a device."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rloop_core.config.base import Section

Engine = Literal["transformers", "vllm"]
"""Who draws completions from a policy."""

Share = Annotated[float, Field(gt=0, le=0.95)]


class VllmConfig(Section):
    """vLLM's share of a device, and how far it may drift from the trainer."""

    memory: Share = 0.85
    """Share of a GPU's memory that the engine of harvest and evaluate takes, weights and KV cache together."""
    colocated_memory: Share = 0.3
    """Share that it takes beside the trainer in exploration; asleep, during updates, it gives that back."""
    cpu_cache_gb: Annotated[int, Field(gt=0)] = 1
    """GiB of KV cache where vLLM runs on a CPU, which only its community build does: for tests."""
    tensor_parallel: Annotated[int, Field(gt=0)] = 1
    """GPUs that share one copy of the weights."""
    drift_alarm: Annotated[float, Field(gt=0)] = 0.1
    """Mean distance, in nats a token, of the engine's and the trainer's log-probabilities that raises an alarm."""
