"""What makes two arms comparable: the first is RLoop, and training and judging see no difference but the method.

The second arm is vanilla RL, or RLoop with another filter, refinement or start of a phase (an ablation).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rloop_core.errors import ConfigError
from rloop_core.results.run_record import RunRecord
from rloop_core.store import Manifest

_DIFFERS_BY_DESIGN = frozenset({"name", "arm", "iterations", "explore.steps"})
_POLICY, _TRAINING, _SET = "the base policy", "the training problem set", "the evaluation set"
_METHOD = ("filter.", "rft.", "harvest.", "explore.start")
_FREE = {
    "explore": ("steps", "snapshot_every", "start"),
    "evaluate": ("k", "snapshots", "base", "sets", "max_completion_tokens"),
}
_ONLY_REPORTED = frozenset(
    ("explore.snapshot_every", *(f"evaluate.{name}" for name in ("snapshots", "base", "k", "select_on", "select_by")))
)


@dataclass(frozen=True)
class ConfigDifference:
    """One config field in which the arms differ.

    Attributes:
        field: Its path, such as `explore.steps`.
        ours, theirs: Its value in RLoop's and in vanilla RL's config, as JSON.
        remark: Why it may differ, or that it should not.
    """

    field: str
    ours: str
    theirs: str
    remark: str


def objections(ours: RunRecord, theirs: RunRecord) -> list[str]:
    """Why the two cannot be compared, a sentence each; empty when they can."""
    found = []
    if ours.config.arm != "rloop":
        found.append(f"{ours.name} is of arm {ours.config.arm}: the first run must be of arm rloop")
    if ours.name == theirs.name:
        found.append(f"{ours.name} is compared with itself")
    steps = [run.config.iterations * run.config.explore.steps for run in (ours, theirs)]
    if steps[0] != steps[1]:
        found.append(f"the RL steps differ: {steps[0]} against {steps[1]}")
    settings = [*_differences(_settings(ours), _settings(theirs)), *_differences(*_made_under(ours, theirs))]
    told = {name: f"{name} differs: {mine} against {other}" for name, mine, other in reversed(settings)}
    found += reversed(told.values())
    digests, declared = [_digests(run) for run in (ours, theirs)], [_declared(run) for run in (ours, theirs)]
    for run, own in zip((ours, theirs), digests, strict=True):
        found += [f"{run.name} has used {len(used)} versions of {name}" for name, used in own.items() if len(used) > 1]
    for name in dict.fromkeys(name for own in (*declared, *digests) for name in own):
        # What the artifacts were made from decides; where there is none yet, what the configs ask for.
        known = digests if all(name in own for own in digests) else declared
        if any(name not in own for own in known):
            holders = [run.name for run, own in zip((ours, theirs), known, strict=True) if name in own]
            found += [f"{name} is used by {holders[0]} alone"] if len(holders) == 1 and name in _sets(declared) else []
        elif known[0][name] != known[1][name]:
            found.append(f"{name} differs: {_shortly(known[0][name])} against {_shortly(known[1][name])}")
    for run in (ours, theirs):
        stale = [f"{stage} of iteration {i}" for (i, stage), made in run.manifests.items() if _stale(run, stage, made)]
        if stale:
            found.append(f"{run.name} was last started with another config than its {', '.join(stale)} was made under")
    return found


def refuse(ours: RunRecord, theirs: RunRecord, found: list[str]) -> ConfigError:
    """The error that says why these arms are not compared, every objection in one line."""
    return ConfigError(
        "the arms are not comparable: " + "; ".join(found),
        field=f"{ours.name}, {theirs.name}",
        fix="make the control with `rloop run --arm vanilla-rl` and the same config, or --force to compare anyhow",
    )


def method_notes(ours: RunRecord, theirs: RunRecord) -> list[str]:
    """Two RLoop runs with one method: what lies between them is chance."""
    if ours.config.arm != theirs.config.arm or any(one.field != "name" for one in config_differences(ours, theirs)):
        return []
    return ["The configs of the arms differ in nothing but the name: every difference between the arms is chance."]


def version_notes(ours: RunRecord, theirs: RunRecord) -> list[str]:
    """Packages whose version differs between the arms, and engines: not a reason to refuse, but one to know."""
    found = []
    mine, other = ours.versions, theirs.versions
    for package in sorted(mine.keys() & other.keys()):
        if mine[package] != other[package]:
            versions = [" and ".join(sorted(used)) for used in (mine[package], other[package])]
            found.append(f"{package} {versions[0]} in {ours.name}, {versions[1]} in {theirs.name}")
    notes = [f"The arms were computed by different versions: {'; '.join(found)}."] if found else []
    engines = [
        f"{stage} by {ours.engines[stage]} in {ours.name}, by {theirs.engines[stage]} in {theirs.name}"
        for stage in ours.engines.keys() & theirs.engines.keys()
        if ours.engines[stage] != theirs.engines[stage]
    ]
    notes += [f"The arms' completions were drawn by different engines: {'; '.join(sorted(engines))}."] * bool(engines)
    return notes


def config_differences(ours: RunRecord, theirs: RunRecord) -> list[ConfigDifference]:
    """Every field in which the configs differ, placement left out."""
    mine, other = (run.config.model_dump(mode="json", exclude={"placement"}) for run in (ours, theirs))
    ablation = ours.config.arm == theirs.config.arm
    return [ConfigDifference(name, a, b, _remark(name, ablation)) for name, a, b in _differences(mine, other)]


def _settings(run: RunRecord) -> dict[str, Any]:
    """What both arms must have in common, by config path."""
    config = run.config
    return {
        "seed": config.seed,
        "policy.dtype": config.policy.dtype,
        "prompt": config.prompt.model_dump(mode="json"),
        "verifier": config.verifier.model_dump(mode="json"),
        "explore": config.explore.model_dump(mode="json", exclude=set(_FREE["explore"])),
        "evaluate": {
            **config.evaluate.model_dump(mode="json", include={"samples", "temperature", "top_p"}),
            "max_completion_tokens": config.evaluation_tokens,
            "sets": {
                one.label: own
                for one in config.evaluate.sets
                if (own := {name: value for name, value in one.own.items() if name != "k"})
            },
        },
    }


def _made_under(ours: RunRecord, theirs: RunRecord) -> tuple[dict[str, Any], dict[str, Any]]:
    """The same, as the artifacts of the first phase have it: a field that came with a newer rloop shows here."""
    found: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
    for stage, free in _FREE.items():
        made = [run.manifest(0, stage) for run in (ours, theirs)]
        for own, manifest in zip(found, made, strict=True):
            if None in made or manifest is None:  # only what both arms have come to can be compared
                continue
            identity = manifest.identity.get("config", {})
            own |= {name: value for name, value in identity.items() if name not in (*_FREE, "max_completion_tokens")}
            own[stage] = {name: value for name, value in identity.get(stage, {}).items() if name not in free}
    return found


def _sets(declared: list[dict[str, set[str]]]) -> set[str]:
    return {name for own in declared for name in own if name.startswith(_SET)}


def _digests(run: RunRecord) -> dict[str, set[str]]:
    """What the run's artifacts were made from and judged by; more than one digest where that has changed since."""
    found: dict[str, set[str]] = {}
    for (iteration, stage), manifest in run.manifests.items():
        for role, digest in manifest.identity.get("inputs", ()):
            if role == "policy" and ((stage, iteration) == ("explore", 0) or (stage == "evaluate" and iteration < 0)):
                found.setdefault(_POLICY, set()).add(digest)
            elif role == "problems":
                found.setdefault(_TRAINING, set()).add(digest)
            elif role.startswith("problems:"):
                found.setdefault(f"{_SET} {role.removeprefix('problems:')!r}", set()).add(digest)
        if "verifier" in manifest.identity and stage in ("explore", "evaluate"):
            found.setdefault("the verifier version", set()).add(str(manifest.identity["verifier"]))
    for one in run.data.sets if run.data else ():
        found.setdefault(_TRAINING if one.use == "training" else f"{_SET} {one.label!r}", {one.digest})
    return found


def _declared(run: RunRecord) -> dict[str, set[str]]:
    """The same, as the config has it."""
    config = run.config
    sources = [(_TRAINING, config.problems), *((f"{_SET} {one.label!r}", one) for one in config.evaluate.sets)]
    found = {name: {json.dumps({**source.identity(), "name": None})} for name, source in sources}
    return {_POLICY: {f"{config.policy.path}@{config.policy.revision}"}, **found}


def _stale(run: RunRecord, stage: str, made: Manifest) -> bool:
    return _changed(made.identity.get("config", {}), json.loads(json.dumps(run.config.stage_identity(stage))))


def _changed(old: Any, new: Any) -> bool:
    """Whether a field that both have differs; one that a newer rloop added does not count."""
    if isinstance(old, dict) and isinstance(new, dict):
        return any(_changed(old[key], new[key]) for key in old.keys() & new.keys())
    return bool(old != new)


def _differences(ours: Any, theirs: Any, path: str = "") -> Iterator[tuple[str, str, str]]:
    """Leaves that differ, as (path, ours, theirs)."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key in sorted(ours.keys() | theirs.keys()):
            yield from _differences(ours.get(key), theirs.get(key), f"{path}.{key}".lstrip("."))
    elif ours != theirs:
        yield path, _shortly(ours), _shortly(theirs)


def _shortly(value: Any) -> str:
    text = "+".join(sorted(one[:12] for one in value)) if isinstance(value, set) else json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _remark(name: str, ablation: bool) -> str:
    if name.startswith(_METHOD):
        return "the method: what is compared" if ablation else "vanilla RL does not use it"
    if name in _DIFFERS_BY_DESIGN:
        return "by design"
    if name in _ONLY_REPORTED:
        return "changes what is kept and reported, not what is trained"
    return "the arms should agree on it"
