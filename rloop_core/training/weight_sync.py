"""What vLLM gets of a policy with adapters: W + scale B A, and W itself left alone.

TRL 1.16 adds the adapters to the model's own weights before each synchronisation, hands the sums on, and subtracts them
again. In bfloat16 (W + D) - D is not W: what is rounded away stays away, so that the frozen weights are theta_i's no
more, and a resumed phase, whose checkpoint holds adapters alone, puts them on other weights than they were trained on.
Here each sum is made beside the weights, one at a time, in float32, and rounded once: to what `merged_weights` keeps.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rloop_core.training.adapters import BASE, DOWN, UP, plain_name


def leave_frozen_weights_alone(generation: Any, scale: float) -> None:
    """Have TRL's bridge to vLLM read a policy's weights without touching them.

    Args:
        generation: TRL's `VLLMGeneration` of a trainer whose model is peft's.
        scale: alpha / rank.
    """
    generation._iter_named_params = lambda: merged_one_by_one(generation.model, scale, generation._dist.gather_params)


def merged_one_by_one(model: Any, scale: float, gather: Any) -> Iterator[tuple[str, Any]]:
    """Name in the plain policy and weight of each of its parameters; a merged one lives until the next is asked for.

    Args:
        model: A peft model; A (rank, in), B (out, rank), W (out, in).
        scale: alpha / rank.
        gather: Context manager that makes the given parameters whole (DeepSpeed ZeRO-3); all ranks iterate alike.
    """
    import torch

    every = dict(model.named_parameters())
    for name, weight in every.items():
        if ".lora_" in name:
            continue
        layer, base, kind = name.partition(BASE)
        pair = [every[layer + DOWN], every[layer + UP]] if base and kind == "weight" else []
        with gather([weight, *pair]), torch.no_grad():
            value = _whole(weight.data)
            if pair:
                down, up = (_whole(one.data).float() for one in pair)
                value = (value.float() + scale * (up @ down)).to(value.dtype)
            yield plain_name(name), value


def _whole(value: Any) -> Any:
    """A tensor that FSDP 2 shards out, brought together."""
    return value.full_tensor() if hasattr(value, "full_tensor") else value
