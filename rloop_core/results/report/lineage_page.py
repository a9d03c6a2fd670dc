"""The page's section on lineage, in words."""

from __future__ import annotations

from typing import Any

from rloop_core.results.report.lineage import Lineage, Link, artifact_table
from rloop_core.results.report.reading import RunRecord
from rloop_core.results.report.rollouts import KEY_FORM


def lineage_section(run: RunRecord, lineage: Lineage) -> dict[str, Any]:
    """What the template's macros `chain` and `artifacts` show."""
    table = artifact_table(run)
    experts = sum(link.facts.get("trajectories", 0) for link in lineage.links if link.stage == "filter")
    return {
        "links": [
            {"name": link.name, "digest": link.digest, "facts": _told(link), "sources": link.sources}
            for link in lineage.links
        ],
        "roots": lineage.roots,
        "broken": lineage.broken,
        "experts": experts,
        "command": f"rloop report {run.name} --store {run.store.uri} --rollout {KEY_FORM}",
        "artifacts": [dict(zip(table.columns, row, strict=True)) for row in table.rows],
    }


def _told(link: Link) -> list[str]:
    """An artifact's facts as phrases."""
    facts = link.facts
    if link.stage == "rft":
        if facts.get("status") == "carried":
            return ["carried on unchanged, for the expert set was empty"]
        return [f"refined on {_count(facts, 'trajectories', 'trajectory')} in {_count(facts, 'updates', 'update')}"]
    if link.stage == "filter":
        return list(_of_experts(facts))
    if link.stage == "harvest":
        sampled = facts.get("snapshot_shards")
        more = [f"{sampled:,} files of rollouts sampled from snapshots besides"] if sampled else []
        return [f"{_count(facts, 'trajectories', 'rollout')} of RL in {_count(facts, 'groups', 'group')} of "
                f"{_count(facts, 'problems', 'problem')}", *more]  # fmt: skip
    shards = facts["shards"]
    steps, ranks, attempts = (sorted({shard[name] for shard in shards}) for name in ("step", "rank", "attempt"))
    if not shards:
        return [_count(facts, "rollouts", "rollout")]
    return [f"{_count(facts, 'rollouts', 'rollout')} in {len(shards):,} shards",
            f"RL steps {steps[0]} to {steps[-1]}, rank {_range(ranks)}, attempt {_range(attempts)}"]  # fmt: skip


def _of_experts(facts: dict[str, Any]) -> list[str]:
    """An expert set's facts; empty where it could not be read."""
    if "trajectories" not in facts:
        return []
    told = [f"{_count(facts, 'trajectories', 'trajectory')} of {_count(facts, 'problems', 'problem')}"]
    if facts["trajectories"]:
        told.append(f"{_count(facts, 'groups', 'group')}, RL steps {facts['first_step']} to {facts['last_step']}")
    if facts["from_snapshots"]:
        told.append(f"{facts['from_snapshots']:,} of them sampled from snapshots")
    if "threshold" in facts:
        told.append(f"success rate below {facts['threshold']:g}" if facts["threshold"] < 1 else "every solved problem")
    return told


def _count(facts: dict[str, Any], name: str, one: str) -> str:
    number = int(facts.get(name, 0))
    many = f"{one[:-1]}ies" if one.endswith("y") else f"{one}s"
    return f"{number:,} {one if number == 1 else many}"


def _range(numbers: list[int]) -> str:
    return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"
