"""Copy a policy out of the store, every byte checked, and tell its story in a README.md."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from rloop_core.errors import ConfigError, StageError, StoreError
from rloop_core.export.card import model_card
from rloop_core.report.reading import RunRecord
from rloop_core.store import fetch

HUB_PREFIX = "hub:"
_WEIGHTS = ("*.safetensors", "*.safetensors.index.json")


def export_policy(run: RunRecord, target: Path, iteration: int | None = None, *, force: bool = False) -> int:
    """Write theta_{i+1} and its model card into a folder; returns i.

    Args:
        run: The run.
        target: Folder; created where it is missing.
        iteration: i; None takes the last that is in the store.
        force: Write into a folder that holds something. Old weights there are removed, since a loader would mix them
            with the new ones; other files stay.

    Raises:
        StageError: There is no such policy yet.
        ArtifactDamaged: A stored file differs from its manifest.
        StoreError: The folder is in use or cannot be written.
    """
    chosen = _iteration(run, iteration)
    if target.is_file() or (target.is_dir() and any(target.iterdir()) and not force):
        what = "is a file" if target.is_file() else "is not empty"
        raise StoreError(what, field=str(target), fix="name another folder, or pass --force")
    manifest = run.manifests[chosen, run.config.policy_stage]
    policy = fetch(run.store, manifest, run.cache) / "policy"
    card = model_card(run, chosen)
    try:
        target.mkdir(parents=True, exist_ok=True)
        for pattern in _WEIGHTS:
            for old in target.glob(pattern):
                old.unlink()
        shutil.copytree(policy, target, dirs_exist_ok=True)
        (target / "README.md").write_text(card, encoding="utf-8")
    except OSError as error:
        fix = "check space and permissions"
        raise StoreError(f"cannot be written: {error.strerror or error}", field=str(target), fix=fix) from error
    return chosen


def upload_policy(
    run: RunRecord, repository: str, iteration: int | None = None, *, private: bool = True
) -> tuple[int, str]:
    """Upload theta_{i+1} and its model card to the Hugging Face hub; returns i and the address.

    Raises:
        ConfigError: No such name is possible, no token is configured, or the hub refuses.
    """
    from huggingface_hub import HfApi, get_token
    from huggingface_hub.errors import HfHubHTTPError

    if repository.count("/") != 1 or not all(repository.split("/")):
        raise ConfigError(f"{repository!r} is no repository", field="--to", fix="use hub:owner/name")
    if not get_token():
        raise ConfigError("there is no Hugging Face token", field="--to", fix="run `hf auth login`, or set HF_TOKEN")
    with tempfile.TemporaryDirectory(prefix="rloop-export-") as folder:
        chosen = export_policy(run, Path(folder) / "policy", iteration)
        try:
            api = HfApi()
            address = api.create_repo(repository, private=private, exist_ok=True)
            message = f"Policy of run {run.name}, iteration {chosen}"
            api.upload_folder(repo_id=repository, folder_path=str(Path(folder) / "policy"), commit_message=message)
        except (HfHubHTTPError, OSError, ValueError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            fix = "check the name, the token's rights and the network"
            raise ConfigError(f"the hub refuses: {reason}", field=f"--to {HUB_PREFIX}{repository}", fix=fix) from error
    return chosen, str(address)


def _iteration(run: RunRecord, wanted: int | None) -> int:
    there = [iteration for iteration, stage in sorted(run.manifests) if stage == run.config.policy_stage]
    if wanted is None and there:
        return there[-1]
    if wanted in there:
        return wanted
    what = (
        f"no iteration has finished {run.config.policy_stage} yet"
        if wanted is None
        else f"iteration {wanted} has no policy yet"
    )
    have = f"export one of {', '.join(map(str, there))}" if there else "let the run go on first"
    raise StageError(what, field=run.name, fix=have)
