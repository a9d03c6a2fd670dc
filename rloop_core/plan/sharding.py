"""Distribution of training states: whole on each device, sharded by ZeRO or FSDP, or kept in host memory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rloop_core.config import Config
from rloop_core.errors import ConfigError
from rloop_core.plan.models import ModelShape, element_bytes


@dataclass(frozen=True)
class Sharding:
    """A sharding strategy: what is divided among the devices, and what is kept in host memory."""

    name: str
    """Its usual name."""
    weights: bool = False
    gradients: bool = False
    optimizer: bool = False
    deepspeed: bool = False
    """DeepSpeed computes with weights in the policy's precision, besides the optimizer's float32 weights; torch
    computes with float32 weights and keeps a cast copy."""
    offload_optimizer: bool = False
    offload_weights: bool = False
    file: str | None = None
    """Value of `placement.accelerate_config`; None if it needs none."""


def sharding_named(config: Config) -> Sharding | None:
    """Return the strategy of `placement.accelerate_config`; None if it is unset or not on this machine.

    Raises:
        ConfigError: The file cannot be read.
    """
    path = config.placement.accelerate_config
    if path is None or not Path(path).is_file():
        return None
    try:  # read as accelerate reads it
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8")) or {}
        return _sharding_in(content, path)
    except (OSError, yaml.YAMLError, ValueError, TypeError, AttributeError, RecursionError) as error:
        # Where, not what: a run's parameters may name any file of the worker.
        mark = getattr(error, "problem_mark", None)
        what = f"{path} is no accelerate config" + (
            f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        )
        raise ConfigError(what, field="placement.accelerate_config", fix="write it with `accelerate config`") from None


def _sharding_in(content: dict[str, Any], path: str) -> Sharding:
    kind = str(content.get("distributed_type", "NO")).upper()
    if kind == "FSDP":
        settings = content.get("fsdp_config", {})
        offload = bool(settings.get("fsdp_offload_params"))
        keeps_weights = settings.get("fsdp_reshard_after_forward") in (False, "SHARD_GRAD_OP")
        return Sharding("FSDP", not keeps_weights, True, True, False, offload, offload, path)
    if kind == "DEEPSPEED":
        settings = content.get("deepspeed_config", {})
        stage = int(settings.get("zero_stage", 2))
        host = [settings.get(f"offload_{what}_device", "none") != "none" for what in ("optimizer", "param")]
        return Sharding(f"ZeRO-{stage}", stage >= 3, stage >= 2, stage >= 1, True, host[0], host[1], path)
    return Sharding("DDP", file=path)


def trained_parameters(config: Config, shape: ModelShape) -> int:
    """Return the number of trained parameters: the policy's, or r (in + out) for each layer with an adapter."""
    if not config.lora.enabled:
        return shape.parameters
    query, key = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    sizes = {
        "q_proj": shape.hidden + query,
        "k_proj": shape.hidden + key,
        "v_proj": shape.hidden + key,
        "o_proj": query + shape.hidden,
        "gate_proj": shape.hidden + shape.intermediate,
        "up_proj": shape.hidden + shape.intermediate,
        "down_proj": shape.intermediate + shape.hidden,
    }
    wanted = config.lora.target_modules
    if not isinstance(wanted, str):
        sizes = {
            name: size for name, size in sizes.items() if any(target.rpartition(".")[2] == name for target in wanted)
        }
    return config.lora.rank * shape.layers * sum(sizes.values())


def training_states(config: Config, shape: ModelShape, way: Sharding, devices: int) -> dict[str, float]:
    """Return the bytes of training states on one device by kind, without those in host memory.

    A trained parameter takes 16 bytes: float32 weight 4, gradient 4, AdamW's two moments 8. torch also keeps autocast's
    bfloat16 copy of all weights. DeepSpeed computes with bfloat16 weights, and its optimizer holds the float32 ones.
    Under adapters the policy's own weights are frozen and held once.
    """
    element = element_bytes(config)
    trained, total = trained_parameters(config, shape), shape.parameters
    shards = {name: devices if on else 1 for name, on in vars(way).items() if isinstance(on, bool)}
    parts: dict[str, float] = {}
    if config.lora.enabled:
        parts["frozen weights"] = 0.0 if way.offload_weights else element * total / shards["weights"]
    if way.deepspeed:
        states = 0.0 if config.lora.enabled or way.offload_weights else element * total / shards["weights"]
        states += 0.0 if way.offload_optimizer else 4.0 * trained / shards["gradients"]
        states += 0.0 if way.offload_optimizer else (8 + 4 * (element == 2)) * trained / shards["optimizer"]
        parts["weights, gradients, AdamW"] = states
    else:
        share = 0.0 if way.offload_optimizer and way.offload_weights else 16.0 * trained / shards["optimizer"]
        share += 4.0 * trained - 4.0 * trained / shards["weights"] if way.optimizer and not way.weights else 0.0
        parts["weights, gradients, AdamW"] = share
        if element == 2 and not config.lora.enabled and not way.weights:
            parts["bfloat16 copy"] = 2.0 * total
    if way.weights:
        parts["layers brought together"] = min(2e9, 2.0 * element * total / shape.layers)
    return parts
