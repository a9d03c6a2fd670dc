"""Rollout engines in the config: their names, and what vLLM may take of a device."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rloop_core.config.base import Section

Engine = Literal["transformers", "vllm"]
"""Who draws completions from a policy."""

ServerUrl = Annotated[str, Field(pattern=r"^https?://[A-Za-z0-9.\-\[\]:]+/?$")]
"""Host and port, and nothing else: no credentials, no path."""
Share = Annotated[float, Field(gt=0, le=0.95)]


class VllmConfig(Section):
    """vLLM's share of a device, and how far it may drift from the trainer."""

    memory: Share = 0.85
    """Share of a GPU's memory that the engine of harvest and evaluate takes, weights and KV cache together."""
    colocated_memory: Share = 0.3
    """Share that it takes beside the trainer in exploration; asleep, during updates, it gives that back."""
    cpu_cache_gb: Annotated[int, Field(gt=0)] = 1
    """GiB of KV cache where vLLM runs on a CPU, which only its community build does: for tests."""
    server: ServerUrl | None = None
    """vLLM server that draws exploration's rollouts on GPUs of its own, often of another machine: `http://host:8000`.

    Null = vLLM shares the trainer's GPUs. The server gets the trainer's weights before every RL step."""
    weights_port: Annotated[int, Field(gt=0, lt=65536)] = 51216
    """Port of the trainer's machine at which the server's GPUs fetch the weights."""
    tensor_parallel: Annotated[int, Field(gt=0)] = 1
    """GPUs that share one copy of the weights; a server has its own setting."""
    drift_alarm: Annotated[float, Field(gt=0)] = 0.1
    """Mean distance, in nats a token, of the engine's and the trainer's log-probabilities that raises an alarm."""
