"""The size of a policy: from its files if it is local, else from a small table."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rloop_core.config import Config, PolicyConfig
from rloop_core.errors import ConfigError
from rloop_core.printable import printable_line


@dataclass(frozen=True)
class ModelShape:
    """The sizes of a decoder, named as in config.json."""

    parameters: int
    """All weights, tied ones once."""
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    context: int | None
    """Longest sequence in tokens; None when unknown."""
    source: str
    """Origin of the numbers."""

    def kv_bytes_per_token(self, element_bytes: int) -> int:
        """Return the bytes of one token's keys and values in all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * element_bytes


def element_bytes(config: Config) -> int:
    """Return the bytes of one weight in the policy's precision."""
    return 2 if config.policy.dtype == "bfloat16" else 4


def decoder_parameters(config: dict[str, Any]) -> int:
    """Count the weights of a Qwen2- or Llama-like decoder from its config.json.

    Embedding V h (twice unless tied); a layer: q and o 2 h^2, k and v 2 h d_kv, biases of q, k, v (Qwen2), the gated
    MLP 3 h m, two norms 2 h; a last norm h.
    """
    hidden, layers, heads = config["hidden_size"], config["num_hidden_layers"], config["num_attention_heads"]
    head_dim = config.get("head_dim") or hidden // heads
    q, kv = heads * head_dim, (config.get("num_key_value_heads") or heads) * head_dim
    biases = q + 2 * kv if config.get("attention_bias", config.get("model_type") == "qwen2") else 0
    layer = 2 * hidden * q + 2 * hidden * kv + biases + 3 * hidden * config["intermediate_size"] + 2 * hidden
    embedding = config["vocab_size"] * hidden * (1 if config.get("tie_word_embeddings", False) else 2)
    return int(layers * layer + embedding + hidden)


def find_shape(policy: PolicyConfig) -> ModelShape | None:
    """Return the policy's shape; None for a model that is neither local nor in the table.

    Raises:
        ConfigError: `policy.path` is a local folder without a usable model.
    """
    if policy.path in KNOWN:
        return shape_of(KNOWN[policy.path], f"known sizes of {policy.path}")
    if policy.path.count("/") == 1 and not policy.path.startswith((".", "/", "~")) and not Path(policy.path).is_dir():
        return None
    from rloop_core.rollout.policy import read_model_config, resolve_policy

    folder = resolve_policy(policy)
    config = read_model_config(folder)
    path = folder / "config.json"
    parameters = sum(_count_weights(file) for file in sorted(folder.glob("*.safetensors")))
    try:
        return shape_of(config, str(path), parameters or None)
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
        raise _unusable(path, error) from error


def shape_of(config: dict[str, Any], source: str, parameters: int | None = None) -> ModelShape | None:
    """Return the shape that a config.json describes; None if a size that a decoder has is missing."""
    config = {**config, **(config.get("text_config") or {})}
    needed = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")
    if any(name not in config for name in needed):
        return None
    for name in (*needed, "num_key_value_heads", "head_dim", "max_position_embeddings"):
        if type(value := config.get(name)) is not int and value is not None:
            raise TypeError(f"{name} is not a whole number")
    heads = config["num_attention_heads"]
    return ModelShape(
        parameters=parameters or decoder_parameters(config),
        hidden=config["hidden_size"],
        layers=config["num_hidden_layers"],
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or config["hidden_size"] // heads,
        intermediate=config["intermediate_size"],
        vocab=config["vocab_size"],
        context=config.get("max_position_embeddings"),
        source=source,
    )


def _count_weights(path: Path) -> int:
    """Count the weights in a safetensors file from its header."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            return sum(math.prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise _unusable(path, error) from error


def _unusable(path: Path, error: Exception) -> ConfigError:
    reason = printable_line(str(error), 200)
    fix = "copy, download or save the model again"
    return ConfigError(f"{path} is not of a model: {reason}", field="policy.path", fix=fix)


_FIELDS = (
    "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size", "vocab_size",
    "tie_word_embeddings",
)  # fmt: skip
_QWEN2_7B = (3584, 28, 28, 4, 18944, 152064, False)
_QWEN2_1_5B = (1536, 28, 12, 2, 8960, 151936, True)
_QWEN2_0_5B = (896, 24, 14, 2, 4864, 151936, True)


def _qwen2(sizes: tuple[int, ...], context: int) -> dict[str, Any]:
    return {"model_type": "qwen2", **dict(zip(_FIELDS, sizes, strict=True)), "max_position_embeddings": context}


KNOWN: dict[str, dict[str, Any]] = {
    "Qwen/Qwen2.5-Math-7B": _qwen2(_QWEN2_7B, 4096),
    "Qwen/Qwen2.5-Math-7B-Instruct": _qwen2(_QWEN2_7B, 4096),
    "Qwen/Qwen2.5-Math-1.5B": _qwen2(_QWEN2_1_5B, 4096),
    "Qwen/Qwen2.5-Math-1.5B-Instruct": _qwen2(_QWEN2_1_5B, 4096),
    "Qwen/Qwen2.5-7B": _qwen2(_QWEN2_7B, 131072),
    "Qwen/Qwen2.5-1.5B": _qwen2(_QWEN2_1_5B, 131072),
    "Qwen/Qwen2.5-0.5B": _qwen2(_QWEN2_0_5B, 32768),
    "Qwen/Qwen2.5-0.5B-Instruct": _qwen2(_QWEN2_0_5B, 32768),
}
"""Common policies' config.json, as published."""
