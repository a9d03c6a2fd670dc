"""Where a run's policy comes from: back through refinement, expert set, harvest and exploration, down to theta_0."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import PurePosixPath
from typing import Any

from rloop_core.errors import StageError
from rloop_core.results.plotting import Table
from rloop_core.results.report.reading import RunRecord, stage_name
from rloop_core.results.report.rollouts import count_experts
from rloop_core.stages.order import producers
from rloop_core.store import Manifest
from rloop_core.trajectories.shards import ShardName

SCHEMA_VERSION = 1
_OF_POLICY = ("rft", "filter", "harvest", "explore")


@dataclass(frozen=True)
class Source:
    """What an artifact was made from.

    Attributes:
        role: What it served as: policy, problems, trajectories, experts.
        name: What it is: "theta_1", "explore of iteration 0", "theta_0", "the training problems".
        digest: As the artifact's manifest has it.
        in_store: Whether the store still holds just that; None for what lies outside the run.
    """

    role: str
    name: str
    digest: str
    in_store: bool | None


@dataclass(frozen=True)
class Link:
    """One artifact on the way back from the final policy.

    Attributes:
        name: What it is.
        iteration, stage: Its place in the store.
        digest, fingerprint, uri: As in its manifest.
        facts: What is in it, by name; for explore its shards too.
        sources: What it was made from.
    """

    name: str
    iteration: int
    stage: str
    digest: str
    fingerprint: str
    uri: str
    facts: dict[str, Any]
    sources: tuple[Source, ...]


@dataclass(frozen=True)
class Lineage:
    """The way back.

    Attributes:
        run, store: Where this is.
        links: From the final policy down to the first exploration; empty when no policy was made yet.
        roots: What the run was given: theta_0 and the training problems.
        broken: Sources that the store no longer holds as they were, a sentence each.
    """

    run: str
    store: str
    links: tuple[Link, ...]
    roots: tuple[Source, ...]
    broken: tuple[str, ...]

    def to_json(self) -> str:
        """As `lineage.json` has it; the keys of the expert trajectories are in `experts.csv` beside it."""
        return json.dumps({"schema_version": SCHEMA_VERSION, **asdict(self)}, indent=1, ensure_ascii=False)


def lineage_of(run: RunRecord) -> Lineage:
    """Follow the manifests' inputs from the last policy that the run made."""
    stage = run.config.policy_stage
    made = [iteration for iteration in run.iterations if run.manifest(iteration, stage)]
    links = [_link(run, manifest) for manifest in _ancestors(run, (made[-1], stage))] if made else []
    roots = {one.role: one for link in links for one in link.sources if one.in_store is None}
    broken = [
        f"{link.name} was made from {one.name} as {one.digest[:12]}, which the store no longer holds"
        for link in links
        for one in link.sources
        if one.in_store is False
    ]
    given = tuple(roots[role] for role in sorted(roots))  # the policy, then the problems
    return Lineage(run.name, run.store.uri, tuple(links), given, tuple(broken))


def _ancestors(run: RunRecord, last: tuple[int, str]) -> list[Manifest]:
    """An artifact and all that it came from, late ones first: an ablation's policy need not come from every theta."""
    reached: dict[tuple[int, str], Manifest] = {}
    todo = [last]
    while todo:
        iteration, stage = key = todo.pop()
        manifest = run.manifest(iteration, stage)
        if manifest is not None and key not in reached:
            reached[key] = manifest
            todo += [one for one in producers(run.config, stage, iteration) if one[0] >= 0]
    return [reached[key] for key in sorted(reached, key=lambda one: (-one[0], _OF_POLICY.index(one[1])))]


def artifact_table(run: RunRecord) -> Table:
    """One row an artifact: what it is, what it came from, and how long it took."""
    rows = [
        (iteration, stage, one.digest, one.fingerprint, " ".join(entry.digest[:12] for entry in one.inputs), one.seed,
         one.seconds, sum(file.bytes for file in one.files), one.created_at)
        for (iteration, stage), one in run.manifests.items()
    ]  # fmt: skip
    columns = ("iteration", "stage", "digest", "fingerprint", "inputs", "seed", "seconds", "bytes", "created_at")
    return Table("lineage", columns, tuple(rows))


def _link(run: RunRecord, manifest: Manifest) -> Link:
    return Link(
        name=_name(run, manifest.iteration, manifest.stage),
        iteration=manifest.iteration,
        stage=manifest.stage,
        digest=manifest.digest,
        fingerprint=manifest.fingerprint,
        uri=run.store.uri_of(manifest.folder),
        facts=_facts(run, manifest),
        sources=tuple(_sources(run, manifest)),
    )


def _name(run: RunRecord, iteration: int, stage: str) -> str:
    """What an artifact is to the algorithm."""
    if stage == run.config.policy_stage or (stage == "rft" and iteration < 0):
        return "theta_0" if iteration < 0 else run.policy_name(iteration)
    return f"expert set of iteration {iteration}" if stage == "filter" else stage_name(iteration, stage)


def _sources(run: RunRecord, manifest: Manifest) -> list[Source]:
    """The inputs with what made them; a stage reads artifacts in the order of `producers`, problem sets after them."""
    makers = iter(producers(run.config, manifest.stage, manifest.iteration))
    found = []
    for role, digest in manifest.identity.get("inputs", ()):
        if role == "problems":
            found.append(Source(role, f"the training problems {run.config.problems.label}", digest, None))
            continue
        maker = next(makers, None)
        if maker is None or maker[0] < 0:
            found.append(Source(role, f"theta_0, {run.config.policy.path}", digest, None))
            continue
        there = run.manifest(*maker)
        found.append(Source(role, _name(run, *maker), digest, there is not None and there.digest == digest))
    return found


def _facts(run: RunRecord, manifest: Manifest) -> dict[str, Any]:
    counts, metrics = manifest.counts, manifest.metrics
    if manifest.stage == "rft":
        return _present({**counts, **metrics}, "status", "trajectories", "updates", "tokens", "loss_last")
    if manifest.stage == "filter":
        keys = count_experts(run, manifest.iteration)
        return {**(asdict(keys) if keys else {}), **_present(metrics, "status", "threshold", "hard_problems")}
    if manifest.stage == "harvest":
        return _present(counts, "trajectories", "groups", "problems", "steps", "ranks", "snapshot_shards")
    return {**_present(counts, "rollouts", "steps"), "shards": _shards(manifest)}


def _present(values: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: values[name] for name in names if values.get(name) is not None}


def _shards(manifest: Manifest) -> list[dict[str, Any]]:
    """Explore's files of rollouts: RL step, rank, and the attempt that the rows carry once they are sealed."""
    found = []
    for entry in manifest.files:
        try:
            name = ShardName.parse(PurePosixPath(entry.path).name)
        except StageError:
            continue
        found.append({"step": name.step, "rank": name.rank, "attempt": name.attempt or 0, "file": entry.path,
                      "sha256": entry.sha256})  # fmt: skip
    return found
