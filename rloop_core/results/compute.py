"""What each arm cost: RL steps, rollouts, tokens, updates, evaluation, and the seconds of each stage."""

from __future__ import annotations

from typing import Any

from rloop_core.results.frame import Results
from rloop_core.results.run_reader import RunRecord, stored_evaluation, success_counts
from rloop_core.results.tables import Table, duration
from rloop_core.stages.registry import STAGES
from rloop_core.store import BASE_ITERATION, Manifest

_STEPS, _ROLLOUTS, _TOKENS = "RL steps", "rollouts of RL", "completion tokens of RL"
_UPDATES = "optimizer updates of RL"


def compute_table(results: Results) -> Table:
    """Return one row a quantity, one column an arm; of a study the mean over the arm's finished seeds.

    None stands where the arm has not the quantity.
    """
    finished = {(run.arm, run.seed) for run in results.progress if run.finished}
    counted = {key: run for key, run in results.runs.items() if key in finished or not results.progress}
    costs = {
        arm: [_quantities(run, results.steps[key]) for key, run in counted.items() if key[0] == arm]
        for arm in results.titles
    }

    def mean(seeds: list[dict[str, float]], name: str) -> float | None:
        known = any(name in cost for cost in seeds)
        return sum(cost.get(name, 0.0) for cost in seeds) / len(seeds) if known else None

    names = dict.fromkeys(name for seeds in costs.values() for cost in seeds for name in cost)
    rows: list[tuple[Any, ...]] = [(name, *(mean(seeds, name) for seeds in costs.values())) for name in names]
    if results.progress:
        rows.insert(0, ("finished seeds", *map(len, costs.values())))
    return Table("compute", ("quantity", *costs), tuple(rows))


def compute_cells(table: Table) -> list[list[str]]:
    """Return the rows of a compute table as text for a page."""

    def cell(name: str, value: float | None) -> str:
        if value is None:
            return ""
        return duration(value) if name.startswith("seconds") else f"{value:,.0f}"

    return [[name, *(cell(name, value) for value in values)] for name, *values in table.rows]


def equality(results: Results, table: Table) -> list[str]:
    """Say which costs of RL are equal in the main arm and the reference, and by how much the others differ."""
    costs = {row["quantity"]: row for row in table.to_dicts()}
    sentences = []
    for name in (_STEPS, _ROLLOUTS, _TOKENS, _UPDATES) if results.reference else ():
        ours, theirs = (costs.get(name, {}).get(arm) for arm in results.pair)
        first, second = (results.titles[arm] for arm in results.pair)
        start = f"{name[:1].upper()}{name[1:]}"
        if ours is None or theirs is None:
            continue
        if ours == theirs:
            sentences.append(f"{start}: equal, {ours:,.0f} in each arm.")
        else:
            more = f" ({100 * (ours / theirs - 1):+.1f} %)".replace("-", "\N{MINUS SIGN}") if theirs else ""
            sentences.append(f"{start}: {ours:,.0f} in {first}, {theirs:,.0f} in {second}{more}.")
    return sentences


def _quantities(run: RunRecord, steps: list[dict[str, Any]]) -> dict[str, float]:
    """Return the costs of a run by name, as its finished artifacts record them."""
    evaluated = _evaluated(run)
    rft = [manifest for (_, stage), manifest in run.manifests.items() if stage == "rft"]
    updates: dict[int, float] = {}  # each RL step's row has those of its phase so far
    for row in steps:
        updates[row["iteration"]] = max(updates.get(row["iteration"], 0.0), _number(row, "policy_step"))
    costs: dict[str, float] = {
        _STEPS: len(steps),
        _ROLLOUTS: sum(_number(row, "rollouts") for row in steps),
        _TOKENS: sum(_number(row, "rollouts") * _number(row, "length_mean") for row in steps),
        _UPDATES: sum(updates.values()),
        "trajectories of RFT": sum(_number(manifest.counts, "trajectories") for manifest in rft),
        "tokens of RFT": sum(_number(manifest.metrics, "tokens") for manifest in rft),
        "updates of RFT": sum(_number(manifest.counts, "updates") for manifest in rft),
        "rollouts of evaluation": evaluated[0],
        "completion tokens of evaluation": evaluated[1],
    }
    if sampled := _from_snapshots(run):
        costs["rollouts from snapshots for RFT"] = sampled
    for stage in STAGES:
        if seconds := [manifest.seconds for (_, name), manifest in run.manifests.items() if name == stage]:
            costs[f"seconds of {stage}"] = sum(seconds)
    costs["seconds in all"] = sum(manifest.seconds for manifest in run.manifests.values())
    return costs


def _number(row: dict[str, Any], name: str) -> float:
    return float(row.get(name) or 0.0)


def _evaluated(run: RunRecord) -> tuple[float, float]:
    """Return samples and completion tokens of every evaluated policy on every set."""
    samples = tokens = 0.0
    for iteration in (BASE_ITERATION, *run.iterations):
        content = stored_evaluation(run, iteration) if run.manifest(iteration, "evaluate") else None
        for summaries in (content["sets"], *content["snapshots"].values()) if content else ():
            for summary in summaries.values():
                samples += _number(summary, "samples")
                tokens += _number(summary, "samples") * _number(summary, "mean_length")
    return samples, tokens


def _from_snapshots(run: RunRecord) -> float:
    """Return the rollouts that harvest sampled from snapshots, beyond those of RL."""

    def sampled(iteration: int, manifest: Manifest) -> float:
        attempts = sum(tries for _, tries in success_counts(run, iteration).values())
        return max(0.0, attempts - _number(manifest.counts, "trajectories"))

    return sum(
        sampled(iteration, manifest)
        for (iteration, stage), manifest in run.manifests.items()
        if stage == "harvest" and manifest.counts.get("snapshot_shards")
    )
