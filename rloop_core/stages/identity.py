"""What determines a stage's content, and which stages the store lacks by that measure."""

from __future__ import annotations

import json
from typing import Any

from rloop_core.config import Config
from rloop_core.errors import RLoopError
from rloop_core.stages.inputs import Inputs
from rloop_core.stages.job import STAGE_VERSIONS, InputRef
from rloop_core.stages.order import producers, stages_of
from rloop_core.store import Manifest, Store, canonical_json, fingerprint, read_manifests
from rloop_core.verifier import VERIFIER_VERSION

_JUDGING = ("explore", "harvest", "evaluate")


def identity_of(config: Config, stage: str, iteration: int, refs: tuple[InputRef, ...]) -> dict[str, Any]:
    """Everything that determines an artifact's content; the fingerprint is its hash."""
    identity: dict[str, Any] = {
        "stage": stage,
        "stage_version": STAGE_VERSIONS[stage],
        "iteration": iteration,
        "config": config.stage_identity(stage),
        "inputs": [[ref.role, ref.digest] for ref in refs],
    }
    if stage in _JUDGING:
        identity["verifier"] = VERIFIER_VERSION
    return json.loads(canonical_json(identity))  # type: ignore[no-any-return]


def missing_stages(config: Config, store: Store, inputs: Inputs) -> list[tuple[int, str]]:
    """(iteration, stage) whose artifact the store does not hold under a config, and all that build on those.

    Every manifest is read once; no file's content is checked.
    """
    stages = stages_of(config)
    read = read_manifests(store, config.name, stages)
    found = {place: manifest for place, manifest in read.items() if isinstance(manifest, Manifest)}

    def holds(iteration: int, stage: str) -> bool:
        manifest = found.get((iteration, stage))
        if manifest is None:
            return False
        try:
            refs = inputs.of(stage, iteration, lambda *place: found.get(place))
        except RLoopError:
            return False
        return manifest.fingerprint == fingerprint(identity_of(config, stage, iteration, refs))

    missing: dict[tuple[int, str], None] = {}
    for iteration, stage in stages:
        if any(source in missing for source in producers(config, stage, iteration)) or not holds(iteration, stage):
            missing[iteration, stage] = None
    return list(missing)
