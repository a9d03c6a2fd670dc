"""Export a policy of a run, every byte checked, with a model card: what it is, where it comes from, what it scores."""

from __future__ import annotations

import html
import json
import re
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rloop_core import __version__
from rloop_core.errors import ArtifactDamaged, ConfigError, StageError, StoreError
from rloop_core.files import file_sizes
from rloop_core.results.findings import run_results
from rloop_core.results.frame import BASE, Policy, Side
from rloop_core.results.run_reader import RunRecord
from rloop_core.results.selection import BIASED, Selected
from rloop_core.results.table import make_row
from rloop_core.results.tables import MetricTable, markdown_code, markdown_table, markdown_text
from rloop_core.rollout.policy import belongs_to_model
from rloop_core.store import Cache, Manifest, fetch

HUB_PREFIX = "hub:"
_HUB_ID = re.compile(r"^[A-Za-z0-9][\w.-]*/[\w.-]+$")


@dataclass(frozen=True)
class StoredPolicy:
    """A policy of a run."""

    iteration: int
    step: int
    """0 is the policy that the iteration ended with, else a snapshot of exploration."""
    name: str
    """"theta_2", or "RL step 50 of iteration 1"."""
    manifest: Manifest
    """The artifact that holds it."""
    folder: str
    """Its folder there."""
    selected: Selected | None = None
    """How it was chosen; None if it was named."""


def policy_of(run: RunRecord, iteration: int | None) -> StoredPolicy:
    """Return the policy that an iteration ended with, theta_{i+1}; None takes the last one in the store.

    Raises:
        StageError: There is no such policy yet.
    """
    stage = run.config.policy_stage
    stored = [index for index, name in sorted(run.manifests) if name == stage]
    if not stored or iteration not in (None, *stored):
        what = f"no iteration has finished {stage}" if iteration is None else f"iteration {iteration} has no policy"
        fix = f"export one of {', '.join(map(str, stored))}" if stored else "let the run go on first"
        raise StageError(f"{what} yet", field=run.name, fix=fix)
    chosen = stored[-1] if iteration is None else iteration
    return StoredPolicy(chosen, 0, run.policy_name(chosen), run.manifests[chosen, stage], "policy")


def selected_policy(run: RunRecord, selected: Selected) -> StoredPolicy:
    """Return the checkpoint that the config chooses.

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


def export_policy(run: RunRecord, target: Path, policy: StoredPolicy, *, force: bool = False) -> list[str]:
    """Write a policy and its model card into a folder.

    Args:
        run: The run.
        target: Folder; created if it is missing.
        policy: The policy.
        force: Write into a folder that is not empty. Once the new files are there, those of an older model (weights,
            adapters, configuration, tokenizer) are removed, since a loader would mix them; other files stay.

    Returns:
        The names of the files that were removed and not replaced.

    Raises:
        ArtifactDamaged: A stored file differs from its manifest, is missing in it, or is a symbolic link.
        StoreError: The folder is in use, in the run's store, or cannot be written.
    """
    if target.is_file() or (target.is_dir() and any(target.iterdir()) and not force):
        what = "is a file" if target.is_file() else "is not empty"
        raise StoreError(what, field=str(target), fix="name another folder, or pass --force")
    if run.store.is_local and target.resolve().is_relative_to(run.store.local_path("").resolve()):
        raise StoreError("is in the store that is read", field=str(target), fix="name a folder outside of the store")
    files = tuple(entry for entry in policy.manifest.files if entry.path.startswith(f"{policy.folder}/"))
    if not files:
        what = f"holds no {policy.folder}"
        raise ArtifactDamaged(what, field=f"{policy.name} of {run.name}", fix="start the run again")
    cache = Cache(run.cache, run.config.placement.cache_bytes)
    folder = fetch(run.store, policy.manifest.model_copy(update={"files": files}), cache)
    for entry in files:
        inside = Path(entry.path)
        if any((folder / part).is_symlink() for part in (inside, *list(inside.parents)[:-1])):
            fix = "put the file itself there"
            raise ArtifactDamaged("is a symbolic link", field=f"{policy.manifest.folder}/{entry.path}", fix=fix)
    card = model_card(run, policy)
    try:
        target.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".rloop-export-", dir=target) as scratch:
            copied = Path(scratch)
            (copied / "README.md").write_text(card, encoding="utf-8")
            for entry in files:
                copy = copied / Path(entry.path).relative_to(policy.folder)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(folder / entry.path, copy, follow_symlinks=False)
            old = [path for path in target.iterdir() if not path.is_dir() and belongs_to_model(path.name)]
            for path in old:
                path.unlink()
            for name in file_sizes(copied):
                (target / name).parent.mkdir(parents=True, exist_ok=True)
                (copied / name).replace(target / name)
        return sorted(path.name for path in old if not path.exists())
    except OSError as error:
        fix = "check space and permissions"
        raise StoreError(f"cannot be written: {error.strerror or error}", field=str(target), fix=fix) from error


def upload_policy(run: RunRecord, repository: str, policy: StoredPolicy, *, private: bool = True) -> str:
    """Upload a policy and its model card to the Hugging Face hub; return the address.

    Files of an older model in the repository are removed; its history keeps them.

    Raises:
        ConfigError: The name is impossible, no token is configured, or the hub refuses.
    """
    from huggingface_hub import HfApi, get_token
    from huggingface_hub.errors import HfHubHTTPError

    if repository.count("/") != 1 or not all(repository.split("/")):
        raise ConfigError(f"{repository!r} is no repository", field="--to", fix="use hub:owner/name")
    if not get_token():
        raise ConfigError("there is no Hugging Face token", field="--to", fix="run `hf auth login`, or set HF_TOKEN")
    with tempfile.TemporaryDirectory(prefix="rloop-export-") as scratch:
        folder = Path(scratch) / "policy"
        export_policy(run, folder, policy)
        try:
            api = HfApi()
            address = api.create_repo(repository, private=private, exist_ok=True)
            message = f"{policy.name} of run {run.name}"
            old = [name for name in api.list_repo_files(repository) if "/" not in name and belongs_to_model(name)]
            api.upload_folder(repo_id=repository, folder_path=str(folder), commit_message=message, delete_patterns=old)
        except (HfHubHTTPError, OSError, ValueError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            fix = "check the name, the token's rights and the network"
            raise ConfigError(f"the hub refuses: {reason}", field=f"--to {HUB_PREFIX}{repository}", fix=fix) from error
    return str(address)


def model_card(run: RunRecord, policy: StoredPolicy) -> str:
    """Return README.md in the hub's format; every name from outside is escaped for Markdown and HTML."""
    config, manifest = run.config, policy.manifest
    base, revision = config.policy.path, config.policy.revision
    versions = ", ".join(f"{name} {version}" for name, version in sorted(manifest.versions.items()))
    origin = [
        ("artifact digest", markdown_code(manifest.digest)),
        ("fingerprint", markdown_code(manifest.fingerprint)),
        *((f"input {markdown_code(entry.uri)}", markdown_code(entry.digest)) for entry in manifest.inputs),
        ("seed", str(manifest.seed)),
        ("made", markdown_text(manifest.created_at)),
        ("versions", markdown_text(versions)),
        ("exported by", f"rloop {__version__}"),
    ]
    header = [
        "---",
        "library_name: transformers",
        "pipeline_tag: text-generation",
        "tags: [rloop, reinforcement-learning]",
        *([f"base_model: {json.dumps(base)}"] if _HUB_ID.match(base) else []),
        "---",
    ]
    config_json = html.escape(json.dumps(config.model_dump(mode="json"), indent=1))
    parts = [
        "\n".join(header),
        f"# {markdown_text(run.name)}, {markdown_text(policy.name)}",
        _description(run, policy),
        *([_choice(policy.selected)] if policy.selected else []),
        f"Base policy: {markdown_code(f'{base}@{revision}' if revision else base)}.",
        "## Evaluation",
        _evaluation(run, policy),
        "## How to load",
        _LOADING.format(template=config.prompt.template),
        "## Origin",
        markdown_table(("what", "value"), origin),
        f"<details><summary>Config of the run</summary>\n\n<pre>{config_json}</pre>\n</details>",
    ]
    return "\n\n".join(parts) + "\n"


def _choice(selected: Selected) -> str:
    where = f"on {markdown_text(selected.on)} by {markdown_text(selected.metric)}"
    if not selected.biased:
        return f"It was chosen {where}, with no other checkpoint to choose from."
    return (
        f"It was chosen as the best of {selected.checkpoints} checkpoints {where}. Its value there is biased upwards, "
        "for luck has a part in being the best; its values on other sets are not."
    )


def _description(run: RunRecord, policy: StoredPolicy) -> str:
    problems, name = markdown_text(run.config.problems.label), markdown_code(run.name)
    objective = run.config.explore.objective.upper()
    if policy.step:
        return (
            f"The policy after RL step {policy.step} ({objective}) on {problems} in the exploration of iteration "
            f"{policy.iteration} of the run {name}: a snapshot, without the fine-tuning that follows in RLoop."
        )
    if run.config.arm == "vanilla-rl":
        return (
            f"The policy that {run.config.explore.steps} RL steps ({objective}) on {problems} ended with, in the run "
            f"{name}: the control arm of an RLoop run, without any fine-tuning."
        )
    return (
        f"The policy that iteration {policy.iteration} of the RLoop run {name} ended with. RLoop explores with "
        f"reinforcement learning ({objective}) on {problems}, keeps the correct trajectories of hard problems, and "
        "fine-tunes the policy that the exploration started from on them."
    )


def _evaluation(run: RunRecord, policy: StoredPolicy) -> str:
    """Return a Markdown table of base and policy for each set; the policy's values on `biased` sets are marked."""
    results, biased = (
        run_results(run, snapshots=bool(policy.step)),
        policy.selected.biased if policy.selected else frozenset(),
    )
    step = policy.iteration * run.config.explore.steps + (policy.step or run.config.explore.steps)
    kinds = ("snapshot",) if policy.step else ("theta", "endpoint")
    tables = []
    for label in results.sets:
        found = next((p for p in results.policies(label, run.name) if p.step == step and p.kind in kinds), None)

        def at(one: Policy | None) -> Callable[[str], Side]:
            return lambda of_set: results.at(of_set, run.name, one)

        about = BIASED if label in biased else ""
        rows = [
            make_row(results, label, at(BASE), name="base"),
            make_row(results, label, at(found), name=policy.name, about=about),
            # The difference on a set of the choice would be biased too.
            None if about else make_row(results, label, at(found), at(BASE), f"{policy.name} - base"),
        ]
        if found:
            samples = int(results.counts(label, run.name, run.config.seed, [found])["n"].sum())
            basis = f"{len(results.problems[label])} problems, {samples:,} samples a policy"
            basis = f"{basis}; [95 % bootstrap interval over problems]"
            tables.append(MetricTable(label, [row for row in rows if row], basis))
    return (
        "\n".join(table.to_markdown(markdown_text) for table in tables) or "This policy was not evaluated in the run."
    )


_LOADING = """```python
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("PATH")
model = AutoModelForCausalLM.from_pretrained("PATH")
```

Prompts were rendered with the template `{template}` of rloop (`rloop_core.problems.render`)."""
