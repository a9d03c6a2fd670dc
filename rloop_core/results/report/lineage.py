"""The lineage of a run's policy: back through refinement, expert set, harvest and exploration, down to theta_0."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import PurePosixPath
from typing import Any

from rloop_core.errors import StageError
from rloop_core.results.report.trajectories import KEY_FORM, count_experts
from rloop_core.results.run_reader import RunRecord
from rloop_core.results.tables import Table
from rloop_core.stages.inputs import producers
from rloop_core.stages.job import stage_name
from rloop_core.stages.registry import STAGES
from rloop_core.store import Manifest
from rloop_core.trajectories.shards import ShardName

SCHEMA_VERSION = 1
_LATEST_FIRST = tuple(reversed(STAGES))


@dataclass(frozen=True)
class Source:
    """An input of an artifact.

    Attributes:
        role: policy, theta, problems, trajectories, experts.
        name: "theta_1", "explore of iteration 0", "theta_0", "the training problems".
        digest: As in the artifact's manifest.
        in_store: True if the store still holds just that; None for an input from outside the run.
    """

    role: str
    name: str
    digest: str
    in_store: bool | None


@dataclass(frozen=True)
class Link:
    """One artifact on the way back from the final policy.

    Attributes:
        name: "theta_2", "expert set of iteration 1".
        iteration, stage: Its place in the store.
        digest, fingerprint, reason, uri: As in its manifest.
        facts: Its counts and metrics by name; for explore its shards too.
        sources: Its inputs.
    """

    name: str
    iteration: int
    stage: str
    digest: str
    fingerprint: str
    reason: str
    uri: str
    facts: dict[str, Any]
    sources: tuple[Source, ...]


@dataclass(frozen=True)
class Lineage:
    """The way back.

    Attributes:
        run, store: The run and its store.
        links: From the final policy down to the first exploration; empty if no policy was made yet.
        roots: What the run was given: theta_0 and the training problems.
        broken: A sentence for each source that the store no longer holds as it was.
    """

    run: str
    store: str
    links: tuple[Link, ...]
    roots: tuple[Source, ...]
    broken: tuple[str, ...]

    def to_json(self) -> str:
        """Return `lineage.json`; the keys of the expert trajectories are in `experts.csv` beside it."""
        return json.dumps({"schema_version": SCHEMA_VERSION, **asdict(self)}, indent=1, ensure_ascii=False)


def lineage_of(run: RunRecord) -> Lineage:
    """Follow the manifests' inputs from the last policy that the run made."""
    stage = run.config.policy_stage
    made = [iteration for iteration in run.iterations if run.manifest(iteration, stage)]
    links = [_link(run, manifest) for manifest in _ancestors(run, (made[-1], stage))] if made else []
    roots = {source.digest: source for link in links for source in link.sources if source.in_store is None}
    broken = [
        f"{link.name} was made from {source.name} as {source.digest[:12]}, which the store no longer holds"
        for link in links
        for source in link.sources
        if source.in_store is False
    ]
    ordered = tuple(sorted(roots.values(), key=lambda source: source.role))  # the policy, then the problems
    return Lineage(run.name, run.store.uri, tuple(links), ordered, tuple(broken))


def _ancestors(run: RunRecord, last: tuple[int, str]) -> list[Manifest]:
    """Return an artifact and all it came from, late ones first."""
    reached: dict[tuple[int, str], Manifest] = {}
    todo = [last]
    while todo:
        iteration, stage = key = todo.pop()
        manifest = run.manifest(iteration, stage)
        if manifest is not None and key not in reached:
            reached[key] = manifest
            todo += [producer for producer in producers(run.config, stage, iteration) if producer[0] >= 0]
    return [reached[key] for key in sorted(reached, key=lambda key: (-key[0], _LATEST_FIRST.index(key[1])))]


def artifact_table(run: RunRecord) -> Table:
    """Return one row an artifact: its identity, its inputs, its time and size."""
    rows = [
        (iteration, stage, made.digest, made.fingerprint, " ".join(entry.digest[:12] for entry in made.inputs),
         made.seed, made.seconds, sum(file.bytes for file in made.files), made.created_at, made.reason)
        for (iteration, stage), made in run.manifests.items()
    ]  # fmt: skip
    columns = ("iteration", "stage", "digest", "fingerprint", "inputs", "seed", "seconds", "bytes", "created_at",
               "reason")  # fmt: skip
    return Table("lineage", columns, tuple(rows))


def _link(run: RunRecord, manifest: Manifest) -> Link:
    return Link(
        name=_name(run, manifest.iteration, manifest.stage),
        iteration=manifest.iteration,
        stage=manifest.stage,
        digest=manifest.digest,
        fingerprint=manifest.fingerprint,
        reason=manifest.reason,
        uri=run.store.uri_of(manifest.folder),
        facts=_facts(run, manifest),
        sources=tuple(_sources(run, manifest)),
    )


def _name(run: RunRecord, iteration: int, stage: str) -> str:
    if stage == run.config.policy_stage or (stage == "rft" and iteration < 0):
        return "theta_0" if iteration < 0 else run.policy_name(iteration)
    return f"expert set of iteration {iteration}" if stage == "filter" else stage_name(iteration, stage)


def _sources(run: RunRecord, manifest: Manifest) -> list[Source]:
    """Return the inputs; a stage reads artifacts in the order of `producers`, and problem sets after them."""
    makers = iter(producers(run.config, manifest.stage, manifest.iteration))
    sources = []
    for role, digest in manifest.identity.get("inputs", ()):
        if role == "problems":
            sources.append(Source(role, f"the training problems {run.config.problems.label}", digest, None))
            continue
        maker = next(makers, None)
        if maker is None or maker[0] < 0:
            sources.append(Source(role, f"theta_0, {run.config.policy.path}", digest, None))
            continue
        stored = run.manifest(*maker)
        sources.append(Source(role, _name(run, *maker), digest, stored is not None and stored.digest == digest))
    return sources


def _facts(run: RunRecord, manifest: Manifest) -> dict[str, Any]:
    counts, metrics = manifest.counts, manifest.metrics
    if manifest.stage == "rft":
        return _present({**counts, **metrics}, "status", "trajectories", "updates", "tokens", "loss_last")
    if manifest.stage == "filter":
        experts = count_experts(run, manifest.iteration) or {}
        return {**experts, **_present(metrics, "status", "threshold", "hard_problems")}
    if manifest.stage == "harvest":
        return _present(counts, "trajectories", "groups", "problems", "steps", "ranks", "snapshot_shards")
    return {**_present(counts, "rollouts", "steps"), "shards": _shards(manifest)}


def _present(values: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: values[name] for name in names if values.get(name) is not None}


def _shards(manifest: Manifest) -> list[dict[str, Any]]:
    """Return explore's files of rollouts: RL step, rank, and the attempt that the rows carry."""
    shards = []
    for entry in manifest.files:
        try:
            name = ShardName.parse(PurePosixPath(entry.path).name)
        except StageError:
            continue
        shards.append({"step": name.step, "rank": name.rank, "attempt": name.attempt or 0, "file": entry.path,
                       "sha256": entry.sha256})  # fmt: skip
    return shards


def lineage_section(run: RunRecord, lineage: Lineage) -> dict[str, Any]:
    """Return what the macro `origin` of the pages shows."""
    table = artifact_table(run)
    return {
        "links": [
            {
                "name": link.name,
                "digest": link.digest,
                "facts": _phrases(link) + ([f"computed again ({link.reason})"] if link.reason else []),
                "sources": link.sources,
            }
            for link in lineage.links
        ],
        "roots": lineage.roots,
        "broken": lineage.broken,
        "experts": sum(link.facts.get("trajectories", 0) for link in lineage.links if link.stage == "filter"),
        "command": f"rloop report {run.name} --store {run.store.uri} --rollout {KEY_FORM}",
        "artifacts": table.to_dicts(),
        "versions": {name: sorted(numbers) for name, numbers in sorted(run.versions.items())},
        "sampled_by": run.sampled_by,
        "config": json.dumps(run.config.model_dump(mode="json"), indent=2, ensure_ascii=False),
    }


def _phrases(link: Link) -> list[str]:
    """Return an artifact's facts in words."""
    facts = link.facts

    def count(name: str, singular: str, plural: str = "") -> str:
        number = int(facts.get(name, 0))
        return f"{number:,} {singular if number == 1 else plural or f'{singular}s'}"

    if link.stage == "rft":
        if facts.get("status") == "carried":
            return ["carried on unchanged, for the expert set was empty"]
        return [f"refined on {count('trajectories', 'trajectory', 'trajectories')} in {count('updates', 'update')}"]
    if link.stage == "filter":
        if "trajectories" not in facts:  # the expert set cannot be read
            return []
        phrases = [f"{count('trajectories', 'trajectory', 'trajectories')} of {count('problems', 'problem')}"]
        if facts["trajectories"]:
            phrases.append(f"{count('groups', 'group')}, RL steps {facts['first_step']} to {facts['last_step']}")
        if facts["from_snapshots"]:
            phrases.append(f"{facts['from_snapshots']:,} of them sampled from snapshots")
        if "threshold" in facts:
            below = f"success rate below {facts['threshold']:g}"
            phrases.append(below if facts["threshold"] < 1 else "every solved problem")
        return phrases
    if link.stage == "harvest":
        phrases = [f"{count('trajectories', 'rollout')} of RL in {count('groups', 'group')} of "
                   f"{count('problems', 'problem')}"]  # fmt: skip
        if sampled := facts.get("snapshot_shards"):
            phrases.append(f"{sampled:,} files of rollouts sampled from snapshots besides")
        return phrases
    shards = facts["shards"]
    if not shards:
        return [count("rollouts", "rollout")]
    steps, ranks, attempts = (sorted({shard[name] for shard in shards}) for name in ("step", "rank", "attempt"))
    where = f"RL steps {steps[0]} to {steps[-1]}, rank {_range(ranks)}, attempt {_range(attempts)}"
    return [f"{count('rollouts', 'rollout')} in {len(shards):,} shards", where]


def _range(numbers: list[int]) -> str:
    return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"
