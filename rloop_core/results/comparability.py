"""Check that two arms are comparable: they differ in nothing but the method.

An arm is RLoop, vanilla RL, or RLoop with another filter, refinement or start of a phase (an ablation).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from typing import Any

from rloop_core.results.run_reader import RunRecord
from rloop_core.stages.registry import STAGES
from rloop_core.store import Manifest

_POLICY, _TRAINING, _SET = "the base policy", "the training problem set", "the evaluation set"
_METHOD, _DESIGN = "the method: what is compared", "by design"
_REPORTED, _DISAGREE = "changes what is kept and reported, not what is trained", "the arms should agree on it"
_REMARKS = {
    **dict.fromkeys(("name", "arm", "iterations", "explore.steps"), _DESIGN),
    **dict.fromkeys(("filter", "rft", "harvest", "explore.start"), _METHOD),
    **dict.fromkeys(("explore.snapshot_every", "evaluate.snapshots", "evaluate.base", "evaluate.k"), _REPORTED),
    **dict.fromkeys(("evaluate.select_on", "evaluate.select_by"), _REPORTED),
    **dict.fromkeys(("problems", "policy.path", "policy.revision", "decontaminate"), "compared by its content"),
}
"""What is said of a config field, or of all fields of a section, in which two arms differ."""


def reasons_against(ours: RunRecord, theirs: RunRecord, by_design: Collection[str] = ()) -> list[str]:
    """Return why the two cannot be compared, a sentence each; empty when they can.

    Args:
        ours: A run.
        theirs: The run that it is compared with.
        by_design: Paths of config fields that may differ, such as `explore.learning_rate`.
    """
    runs = (ours, theirs)
    reasons = []
    if ours.name == theirs.name:
        reasons.append(f"{ours.name} is compared with itself")
    steps = [run.config.iterations * run.config.explore.steps for run in runs]
    if steps[0] != steps[1] and not {"iterations", "explore.steps"} & set(by_design):
        reasons.append(f"the RL steps differ: {steps[0]} against {steps[1]}")
    reasons += [
        f"{name} differs: {first} against {second}"
        for name, first, second, remark in config_differences(ours, theirs)
        if remark == _DISAGREE and name not in by_design
    ]
    digests, declared = [_digests(run) for run in runs], [_declared(run) for run in runs]
    for run, used in zip(runs, digests, strict=True):
        reasons += [f"{run.name} has used {len(one)} versions of {name}" for name, one in used.items() if len(one) > 1]
    for name in dict.fromkeys(name for inputs in (*declared, *digests) for name in inputs):
        # What the artifacts were made from decides; where one arm has none yet, what the configs ask for.
        known = digests if all(name in inputs for inputs in digests) else declared
        holders = [run.name for run, inputs in zip(runs, known, strict=True) if name in inputs]
        if len(holders) == 2 and known[0][name] != known[1][name]:
            reasons.append(f"{name} differs: {_brief(known[0][name])} against {_brief(known[1][name])}")
        elif len(holders) == 1 and name.startswith(_SET) and any(name in inputs for inputs in declared):
            reasons.append(f"{name} is used by {holders[0]} alone")
    for run in runs:
        stale = [f"{stage} of iteration {i}" for (i, stage), made in run.manifests.items() if _stale(run, stage, made)]
        if stale:
            reasons.append(
                f"{run.name} was last started with another config than its {', '.join(stale)} was made under"
            )
    return reasons


def method_notes(ours: RunRecord, theirs: RunRecord) -> list[str]:
    """Return a note if both are RLoop runs with one method: then chance alone lies between them."""
    if ours.config.arm != theirs.config.arm or any(field != "name" for field, *_ in config_differences(ours, theirs)):
        return []
    return ["The configs of the arms differ in nothing but the name: every difference between the arms is chance."]


def version_notes(ours: RunRecord, theirs: RunRecord) -> list[str]:
    """Return notes on packages whose version differs between the arms, and on different rollout engines."""
    packages = []
    for package in sorted(ours.versions.keys() & theirs.versions.keys()):
        first, second = (" and ".join(sorted(run.versions[package])) for run in (ours, theirs))
        if first != second:
            packages.append(f"{package} {first} in {ours.name}, {second} in {theirs.name}")
    notes = [f"The arms were computed by different versions: {'; '.join(packages)}."] if packages else []
    engines = [
        f"{stage} by {ours.engines[stage]} in {ours.name}, by {theirs.engines[stage]} in {theirs.name}"
        for stage in sorted(ours.engines.keys() & theirs.engines.keys())
        if ours.engines[stage] != theirs.engines[stage]
    ]
    notes += [f"The arms' completions were sampled by different engines: {'; '.join(engines)}."] if engines else []
    return notes


def config_differences(ours: RunRecord, theirs: RunRecord) -> list[tuple[str, str, str, str]]:
    """Return every field in which the configs differ, placement left out: (path, ours, theirs, remark), as JSON.

    The remark says why it may differ, or that it should not.
    """
    ablation = ours.config.arm == theirs.config.arm
    found = []
    for name, first, second in _differences(_settings(ours), _settings(theirs)):
        places = (name, ".".join(name.split(".")[:2]), name.partition(".")[0])
        remark = next((_REMARKS[place] for place in places if place in _REMARKS), _DISAGREE)
        unused = remark == _METHOD and not ablation
        found.append((name, first, second, "vanilla RL does not use it" if unused else remark))
    return found


def _settings(run: RunRecord) -> dict[str, Any]:
    """Return the config without placement; of the evaluation sets what is their own, by label."""
    config = run.config
    settings = config.model_dump(mode="json", exclude={"placement"})
    sets = {one.label: {name: value for name, value in one.own.items() if name != "k"} for one in config.evaluate.sets}
    settings["evaluate"]["sets"] = {label: fields for label, fields in sets.items() if fields}
    settings["evaluate"]["max_completion_tokens"] = config.evaluation_tokens
    return settings


def _digests(run: RunRecord) -> dict[str, set[str]]:
    """Return what the run's artifacts were made from; several digests where an input has changed since."""
    used: dict[str, set[str]] = {}
    for (iteration, stage), manifest in run.manifests.items():
        for role, digest in manifest.identity.get("inputs", ()):
            if role == "policy" and ((stage, iteration) == ("explore", 0) or (stage == "evaluate" and iteration < 0)):
                used.setdefault(_POLICY, set()).add(digest)
            elif role == "problems":
                used.setdefault(_TRAINING, set()).add(digest)
            elif role.startswith("problems:"):
                used.setdefault(f"{_SET} {role.removeprefix('problems:')!r}", set()).add(digest)
        if "verifier" in manifest.identity and stage in ("explore", "evaluate"):
            used.setdefault("the verifier version", set()).add(str(manifest.identity["verifier"]))
    return used


def _declared(run: RunRecord) -> dict[str, set[str]]:
    """Return the same, as the config declares it."""
    config = run.config
    sources = [(_TRAINING, config.problems), *((f"{_SET} {one.label!r}", one) for one in config.evaluate.sets)]
    inputs = {name: {json.dumps({**source.identity(), "name": None})} for name, source in sources}
    return {_POLICY: {f"{config.policy.path}@{config.policy.revision}"}, **inputs}


def _stale(run: RunRecord, stage: str, made: Manifest) -> bool:
    return _changed(made.identity.get("config", {}), json.loads(json.dumps(STAGES[stage].identity(run.config))))


def _changed(old: Any, new: Any) -> bool:
    """Return True if a field that both have differs; one that a newer rloop added does not count."""
    if isinstance(old, dict) and isinstance(new, dict):
        return any(_changed(old[key], new[key]) for key in old.keys() & new.keys())
    return bool(old != new)


def _differences(ours: Any, theirs: Any, path: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield the leaves that differ, as (path, ours, theirs)."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key in sorted(ours.keys() | theirs.keys()):
            yield from _differences(ours.get(key), theirs.get(key), f"{path}.{key}".lstrip("."))
    elif ours != theirs:
        yield path, _brief(ours), _brief(theirs)


def _brief(value: Any) -> str:
    text = "+".join(sorted(digest[:12] for digest in value)) if isinstance(value, set) else json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
