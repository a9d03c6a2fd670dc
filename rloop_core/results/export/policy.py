"""Copy a policy out of the store, every byte checked, and tell its story in a README.md."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from rloop_core.errors import ArtifactDamaged, ConfigError, StageError, StoreError
from rloop_core.results.export.card import model_card
from rloop_core.results.report.reading import RunRecord
from rloop_core.results.report.selection import Selected
from rloop_core.store import Cache, Manifest, fetch

HUB_PREFIX = "hub:"
_WEIGHTS = ("*.safetensors", "*.safetensors.index.json")


@dataclass(frozen=True)
class StoredPolicy:
    """A policy of a run.

    Attributes:
        iteration, step: Where it is from; step 0 is what the iteration ended with, else a snapshot of exploration.
        name: "theta_2", or "RL step 50 of iteration 1".
        manifest: The artifact that holds it.
        folder: Its folder there.
        selected: How it was chosen; None where it was named.
    """

    iteration: int
    step: int
    name: str
    manifest: Manifest
    folder: str
    selected: Selected | None = None


def policy_of(run: RunRecord, iteration: int | None) -> StoredPolicy:
    """What an iteration ended with, theta_{i+1}; None takes the last that is in the store.

    Raises:
        StageError: There is no such policy yet.
    """
    chosen = _iteration(run, iteration)
    manifest = run.manifests[chosen, run.config.policy_stage]
    return StoredPolicy(chosen, 0, run.policy_name(chosen), manifest, "policy")


def selected_policy(run: RunRecord, selected: Selected) -> StoredPolicy:
    """The checkpoint that the config chooses.

    Raises:
        StageError: It is not in the store any more.
    """
    iteration, step = selected.iteration, selected.step
    stage = "explore" if step else run.config.policy_stage
    manifest = run.manifest(iteration, stage)
    if manifest is None:
        what = f"{selected.policy} is evaluated, but its {stage} has no artifact any more"
        raise StageError(what, field=run.name, fix="start the run again")
    folder = f"snapshots/step-{step:06d}" if step else "policy"
    return StoredPolicy(iteration, step, selected.policy, manifest, folder, selected)


def export_policy(run: RunRecord, target: Path, wanted: StoredPolicy, *, force: bool = False) -> None:
    """Write a policy and its model card into a folder.

    Args:
        run: The run.
        target: Folder; created where it is missing.
        wanted: The policy.
        force: Write into a folder that holds something. Old weights there are removed, since a loader would mix them
            with the new ones; other files stay.

    Raises:
        ArtifactDamaged: A stored file differs from its manifest, or is missing in it.
        StoreError: The folder is in use or cannot be written.
    """
    if target.is_file() or (target.is_dir() and any(target.iterdir()) and not force):
        what = "is a file" if target.is_file() else "is not empty"
        raise StoreError(what, field=str(target), fix="name another folder, or pass --force")
    files = tuple(entry for entry in wanted.manifest.files if entry.path.startswith(f"{wanted.folder}/"))
    if not files:
        what = f"holds no {wanted.folder}"
        raise ArtifactDamaged(what, field=f"{wanted.name} of {run.name}", fix="start the run again")
    cache = Cache(run.cache, run.config.placement.cache_bytes)
    policy = fetch(run.store, wanted.manifest.model_copy(update={"files": files}), cache) / wanted.folder
    card = model_card(run, wanted.iteration, wanted.step, wanted.selected)
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


def upload_policy(run: RunRecord, repository: str, wanted: StoredPolicy, *, private: bool = True) -> str:
    """Upload a policy and its model card to the Hugging Face hub; returns the address.

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
        export_policy(run, Path(folder) / "policy", wanted)
        try:
            api = HfApi()
            address = api.create_repo(repository, private=private, exist_ok=True)
            message = f"{wanted.name} of run {run.name}"
            api.upload_folder(repo_id=repository, folder_path=str(Path(folder) / "policy"), commit_message=message)
        except (HfHubHTTPError, OSError, ValueError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            fix = "check the name, the token's rights and the network"
            raise ConfigError(f"the hub refuses: {reason}", field=f"--to {HUB_PREFIX}{repository}", fix=fix) from error
    return str(address)


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
