"""Add up what an arm cost: RL steps, rollouts, tokens, updates, evaluation, and seconds of each stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rloop_core.results.run_reader import stored_evaluation, success_counts
from rloop_core.results.study.arms import Arm
from rloop_core.results.tables import Table, duration
from rloop_core.stages.registry import STAGES
from rloop_core.store import BASE_ITERATION, Manifest

_STEPS, _ROLLOUTS, _RL_UPDATES, _RFT_UPDATES = "RL steps", "rollouts of RL", "optimizer updates of RL", "updates of RFT"
_TOKENS, _SAMPLED = "completion tokens of RL", "rollouts from snapshots for RFT"


def compute(arms: tuple[Arm, Arm]) -> tuple[Table, list[str]]:
    """Return the costs of both arms from their finished artifacts, and what is equal and what is not, in sentences."""
    costs = {arm.title: quantities(arm) for arm in arms}
    extra = [sentence for title, cost in costs.items() for sentence in _extra(title, cost)]
    return compute_table({title: [cost] for title, cost in costs.items()}), [*_equality(costs), *extra]


def compute_table(costs: Mapping[str, Sequence[Mapping[str, float]]]) -> Table:
    """Return one row a quantity, one column an arm: the mean over its seeds; None where the arm has not the quantity.

    Args:
        costs: For each arm the `quantities` of its seeds.
    """

    def mean(seeds: Sequence[Mapping[str, float]], name: str) -> float | None:
        known = any(name in cost for cost in seeds)
        return sum(cost.get(name, 0.0) for cost in seeds) / len(seeds) if known else None

    names = dict.fromkeys(name for seeds in costs.values() for cost in seeds for name in cost)
    rows = tuple((name, *(mean(seeds, name) for seeds in costs.values())) for name in names)
    return Table("compute", ("quantity", *costs), rows)


def compute_cells(table: Table) -> list[list[str]]:
    """Return the rows of a compute table as text for a page."""

    def cell(name: str, value: float | None) -> str:
        if value is None:
            return ""
        return duration(value) if name.startswith("seconds") else f"{value:,.0f}"

    return [[name, *(cell(name, value) for value in values)] for name, *values in table.rows]


def quantities(arm: Arm) -> dict[str, float]:
    """Return the costs of an arm by name, as its finished artifacts record them."""
    manifests = arm.run.manifests
    evaluated = _evaluated(arm)
    rft = [manifest for (_, stage), manifest in manifests.items() if stage == "rft"]
    costs: dict[str, float] = {
        _STEPS: len(arm.steps),
        _ROLLOUTS: sum(_number(row, "rollouts") for row in arm.steps),
        _TOKENS: sum(_number(row, "rollouts") * _number(row, "length_mean") for row in arm.steps),
        _RL_UPDATES: sum(_updates(arm).values()),
        "trajectories of RFT": sum(_number(manifest.counts, "trajectories") for manifest in rft),
        "tokens of RFT": sum(_number(manifest.metrics, "tokens") for manifest in rft),
        _RFT_UPDATES: sum(_number(manifest.counts, "updates") for manifest in rft),
        "rollouts of evaluation": evaluated[0],
        "completion tokens of evaluation": evaluated[1],
    }
    if sampled := _from_snapshots(arm):
        costs[_SAMPLED] = sampled
    for stage in STAGES:
        if seconds := [manifest.seconds for (_, name), manifest in manifests.items() if name == stage]:
            costs[f"seconds of {stage}"] = sum(seconds)
    costs["seconds in all"] = sum(manifest.seconds for manifest in manifests.values())
    return costs


def _number(row: dict[str, Any], name: str) -> float:
    return float(row.get(name) or 0.0)


def _updates(arm: Arm) -> dict[int, float]:
    """Return optimizer updates by iteration: each RL step's row has those of its phase so far."""
    updates: dict[int, float] = {}
    for row in arm.steps:
        updates[row["iteration"]] = max(updates.get(row["iteration"], 0.0), _number(row, "policy_step"))
    return updates


def _evaluated(arm: Arm) -> tuple[float, float]:
    """Return samples and completion tokens of every evaluated policy on every set."""
    samples = tokens = 0.0
    for iteration in (BASE_ITERATION, *arm.run.iterations):
        content = stored_evaluation(arm.run, iteration) if arm.run.manifest(iteration, "evaluate") else None
        for summaries in (content["sets"], *content["snapshots"].values()) if content else ():
            for summary in summaries.values():
                samples += _number(summary, "samples")
                tokens += _number(summary, "samples") * _number(summary, "mean_length")
    return samples, tokens


def _from_snapshots(arm: Arm) -> float:
    """Return the rollouts that harvest sampled from snapshots, beyond those of RL."""

    def sampled(iteration: int, manifest: Manifest) -> float:
        attempts = sum(tries for _, tries in success_counts(arm.run, iteration).values())
        return max(0.0, attempts - _number(manifest.counts, "trajectories"))

    return sum(
        sampled(iteration, manifest)
        for (iteration, stage), manifest in arm.run.manifests.items()
        if stage == "harvest" and manifest.counts.get("snapshot_shards")
    )


def _equality(costs: dict[str, dict[str, float]]) -> list[str]:
    """Compare RL steps, rollouts, tokens and updates of RL, the first arm against the second."""
    sentences = []
    (first, our_costs), (second, their_costs) = costs.items()
    for name in (_STEPS, _ROLLOUTS, _TOKENS, _RL_UPDATES):
        ours, theirs, start = our_costs[name], their_costs[name], f"{name[:1].upper()}{name[1:]}"
        if ours == theirs:
            sentences.append(f"{start}: equal, {ours:,.0f} in each arm.")
        else:
            more = f" ({100 * (ours / theirs - 1):+.1f} %)".replace("-", "\N{MINUS SIGN}") if theirs else ""
            sentences.append(f"{start}: {ours:,.0f} in {first}, {theirs:,.0f} in {second}{more}.")
    return sentences


def _extra(title: str, cost: dict[str, float]) -> list[str]:
    """Say what an arm spends beyond RL."""

    def share(part: str, whole: str) -> str:
        return (
            f", {100 * cost[part] / cost[whole]:.1f} % of its {whole.removeprefix('optimizer ')}" if cost[whole] else ""
        )

    sentences = []
    if cost[_RFT_UPDATES]:
        extra = share(_RFT_UPDATES, _RL_UPDATES)
        sentences.append(f"RFT adds {cost[_RFT_UPDATES]:,.0f} optimizer updates to {title}{extra}.")
    if cost.get(_SAMPLED):
        extra = share(_SAMPLED, _ROLLOUTS)
        sentences.append(f"{title} samples {cost[_SAMPLED]:,.0f} more rollouts from snapshots for RFT{extra}.")
    return sentences
