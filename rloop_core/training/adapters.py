"""Low-rank adapters on TRL's trainers: made by peft, and merged into plain weights whenever a policy is kept."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from rloop_core.config import Config
from rloop_core.errors import ConfigError

State = dict[str, Any]
_WRAPPED = "base_model.model."
BASE, DOWN, UP = ".base_layer.", ".lora_A.default.weight", ".lora_B.default.weight"


def check_adapters(config: Config, folder: Path) -> None:
    """Refuse adapters that cannot be trained here: peft is missing, or the policy has no such layer.

    Args:
        config: The run's config.
        folder: Where theta_0 is; the headers of its weights are read.

    Raises:
        ConfigError: Naming the field and the fix.
    """
    if not config.lora.enabled:
        return
    trained_here = {"explore", "rft"} - set(config.placement.pools)
    if trained_here and find_spec("peft") is None:
        fix = "pip install 'rloop[lora]', or set lora.rank to 0 to train all weights"
        raise ConfigError("adapters need the package peft, which is not installed", field="lora.rank", fix=fix)
    wanted = config.lora.target_modules
    if isinstance(wanted, str):
        return
    layers = _layers(folder)
    for name in wanted:
        if not any(layer == name or layer.endswith(f".{name}") for layer in layers):
            known = sorted({layer.rpartition(".")[2] for layer in layers if ".layers." in layer})
            fix = f"name some of {', '.join(known[:12])}" if known else "set it to all-linear"
            raise ConfigError(f"the policy has no layer {name!r}", field="lora.target_modules", fix=fix)


def adapter_settings(config: Config, stage: Literal["explore", "rft"]) -> Any | None:
    """peft's config of the adapters that a stage trains, for a trainer's `peft_config`; None trains all weights."""
    lora = config.lora
    if not lora.enabled:
        return None
    from peft import LoraConfig

    return LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout if stage == "rft" else 0.0,
        target_modules=lora.target_modules if isinstance(lora.target_modules, str) else list(lora.target_modules),
        task_type="CAUSAL_LM",
    )


def loading_dtype(config: Config) -> str:
    """Precision in which a policy is loaded to be trained.

    Weights that are trained are float32: bfloat16 alone cannot hold an update of learning rate 1e-6. Under adapters
    they are frozen, and stay in the precision that they are stored in; the adapters themselves are float32.
    """
    return config.policy.dtype if config.lora.enabled else "float32"


def policy_of(trainer: Any, config: Config) -> tuple[Any, State | None]:
    """The policy that a trainer holds, as `save_policy` takes it: the model, and weights that it does not hold itself.

    All ranks must call it: whatever shares the weights out among them, all of them help to bring them together. A
    single one may hold them in parts, too, in the host's memory.
    """
    from accelerate import DistributedType

    plain = trainer.accelerator.distributed_type == DistributedType.NO
    weights = None if plain else trainer.accelerator.get_state_dict(trainer.model_wrapped)
    if not config.lora.enabled:
        return trainer.model, weights
    if trainer.accelerator.process_index:
        return trainer.model, None
    state = trainer.model.state_dict() if weights is None else weights
    scale = config.lora.alpha / config.lora.rank
    return trainer.model.get_base_model(), merged_weights(state, scale, dtype=config.policy.dtype)


def merged_weights(state: State, scale: float, *, dtype: str) -> State:
    """W + scale B A under the policy's own names, summed in float32, then in `dtype` and in the host's memory.

    The state is left as it is: adapters that are merged into a model and taken out again leave other weights behind,
    and a phase that kept a snapshot would then go on otherwise than one that did not.

    Args:
        state: A peft model's state, whole; A (rank, in), B (out, rank), W (out, in).
        scale: alpha / rank.
        dtype: "float32" or "bfloat16".
    """
    import torch

    target = getattr(torch, dtype)
    merged: State = {}
    for name, value in state.items():
        if ".lora_" in name:
            continue
        weight = value.detach()
        layer, base, kind = name.partition(BASE)
        if base and kind == "weight":
            down, up = state[layer + DOWN].detach(), state[layer + UP].detach()
            weight = weight.float() + scale * (up.float() @ down.float())
        merged[plain_name(name)] = weight.to("cpu", target)
    return merged


def plain_name(name: str) -> str:
    """The policy's own name of a weight that peft has wrapped."""
    return name.removeprefix(_WRAPPED).replace(BASE, ".").replace("_checkpoint_wrapped_module.", "")


def _layers(folder: Path) -> list[str]:
    """Names of what has a weight matrix in a policy's files."""
    from safetensors import safe_open

    found = []
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="numpy") as weights:
            found += [name for name in weights.keys() if len(weights.get_slice(name).get_shape()) == 2]  # noqa: SIM118
    return [name.removesuffix(".weight") for name in found]
