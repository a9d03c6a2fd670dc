"""Policies on disk: where theta_0 is, how weights are loaded, and how they are written without side effects."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rloop_core.config import PolicyConfig
from rloop_core.errors import ConfigError
from rloop_core.organism import POLICIES, bundled_policy_path
from rloop_core.store import content_digest, file_sha256

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".index.json", ".h5", ".msgpack", ".gguf", ".onnx")
_NOTES = ("card.json", "LICENSE", "NOTICE", "trainer_state.json", "training_args.bin")


def resolve_policy(policy: PolicyConfig) -> Path:
    """A local directory with theta_0, downloading a hub id if that is what was named.

    Raises:
        ConfigError: There is no such model.
    """
    if policy.path in POLICIES:
        return bundled_policy_path(policy.path)
    local = Path(policy.path).expanduser()
    if local.is_dir():
        if not (local / "config.json").is_file():
            raise ConfigError(f"{local} holds no config.json", field="policy.path", fix="name a saved model's folder")
        return local
    if policy.path.count("/") != 1 or policy.path.startswith((".", "/", "~")):
        fix = f"name a folder, a hub id `owner/model`, or {' or '.join(POLICIES)}"
        raise ConfigError(f"there is no model at {policy.path!r}", field="policy.path", fix=fix)
    return _download(policy)


def _download(policy: PolicyConfig) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    patterns = ["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja"]
    if policy.trust_remote_code:
        patterns.append("*.py")
    try:
        return Path(snapshot_download(policy.path, revision=policy.revision, allow_patterns=patterns))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise ConfigError(
            f"model {policy.path!r} cannot be had: {str(error).splitlines()[0]}",
            field="policy.path",
            fix="check the name, the network and HF_TOKEN, or name a local folder",
        ) from error


def context_tokens(folder: Path) -> int | None:
    """The model's longest sequence in tokens, from its config.json; None when it does not say."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    found = config.get("max_position_embeddings") or config.get("text_config", {}).get("max_position_embeddings")
    return int(found) if found else None


def policy_digest(folder: Path) -> str:
    """Content digest of a policy directory: weights, config and tokenizer."""
    return content_digest((path.name, file_sha256(path)) for path in _policy_files(folder))


def load_tokenizer(folder: Path, *, trust_remote_code: bool = False) -> PreTrainedTokenizerBase:
    """The policy's tokenizer, padding on the left as generation needs.

    Raises:
        ConfigError: It has no end-of-sequence token, or does not read.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            folder, padding_side="left", trust_remote_code=trust_remote_code
        )
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"the tokenizer cannot be read: {reason}", field="policy.path", fix="check it") from error
    if tokenizer.eos_token_id is None:
        raise ConfigError("the tokenizer has no eos token", field="policy.path", fix="set one; completions end with it")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def load_model(folder: Path, *, dtype: str, device: str, trust_remote_code: bool = False) -> PreTrainedModel:
    """The policy's weights, in `dtype` ("float32" or "bfloat16"), on `device`; safetensors only.

    Raises:
        ConfigError: The weights do not load.
    """
    import torch
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    try:
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            folder, dtype=getattr(torch, dtype), trust_remote_code=trust_remote_code, use_safetensors=True
        )
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"the model cannot be loaded: {reason}", field="policy.path", fix="check it") from error
    return model.to(device)  # type: ignore[arg-type,return-value,no-any-return]


def eos_token_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Every token that ends a completion: the tokenizer's, and those the model itself declares (as TRL counts them)."""
    return _with_own(getattr(model.generation_config, "eos_token_id", None), tokenizer)


def declared_eos_ids(folder: Path, tokenizer: PreTrainedTokenizerBase, *, trust_remote_code: bool = False) -> list[int]:
    """`eos_token_ids` of a policy whose weights another process loads."""
    from transformers import AutoConfig, GenerationConfig

    if (folder / "generation_config.json").is_file():
        declared = GenerationConfig.from_pretrained(folder).eos_token_id
    else:
        declared = AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code).eos_token_id
    return _with_own(declared, tokenizer)


def _with_own(declared: Any, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    ids = [] if declared is None else [declared] if isinstance(declared, int) else list(declared)
    own = tokenizer.eos_token_id
    return ids if own in ids else [own, *ids]


def save_policy(
    model: PreTrainedModel, source: Path, target: Path, *, dtype: str, weights: dict[str, Any] | None = None
) -> None:
    """Write a policy: the model's weights in `dtype`, and every other file just as theta_i had it.

    Nothing of the training run (paths, versions, flags that a trainer sets on the model) leaks into the artifact, so
    equal weights are equal files. `weights` are the model's where it does not hold them whole itself.
    """
    import torch

    target.mkdir(parents=True, exist_ok=True)
    copy_policy_files(source, target)
    whole = model.state_dict() if weights is None else weights
    # A tied weight is written once; cast on its own, it would no longer be seen to be the other's.
    tied = getattr(model, "all_tied_weights_keys", None) or {}
    once = {name: value for name, value in whole.items() if tied.get(name) not in whole}
    saved = {name: value.detach().to("cpu", getattr(torch, dtype)) for name, value in once.items()}
    with_config = target / ".writing"
    model.save_pretrained(with_config, state_dict=saved)
    for path in sorted(with_config.iterdir()):
        if path.name.endswith(_WEIGHTS):
            path.replace(target / path.name)
    shutil.rmtree(with_config)


def copy_policy_files(source: Path, target: Path) -> None:
    """Copy everything of a policy but its weights."""
    for path in _policy_files(source):
        if not path.name.endswith(_WEIGHTS):
            shutil.copyfile(path, target / path.name)


def _policy_files(folder: Path) -> list[Path]:
    """What makes a policy what it is; cards and notes about it, which speak of other weights, are not among them."""
    return [
        path
        for path in sorted(folder.iterdir())
        if path.is_file()
        and not path.name.startswith(".")
        and path.suffix.lower() not in (".md", ".png", ".pdf")
        and path.name not in _NOTES
    ]
