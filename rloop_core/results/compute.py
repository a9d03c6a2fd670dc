"""What each arm cost: RL steps, rollouts, tokens, updates, and the seconds of each stage."""

from __future__ import annotations

from typing import Any

from rloop_core.results.frame import Results
from rloop_core.results.run_reader import RunRecord
from rloop_core.results.tables import Table
from rloop_core.stages.registry import STAGES


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


def _quantities(run: RunRecord, steps: list[dict[str, Any]]) -> dict[str, float]:
    """Return the costs of a run by name, as its finished artifacts record them."""
    rft = [manifest for (_, stage), manifest in run.manifests.items() if stage == "rft"]
    updates: dict[int, float] = {}  # each RL step's row has those of its phase so far
    for row in steps:
        updates[row["iteration"]] = max(updates.get(row["iteration"], 0.0), _number(row, "policy_step"))
    costs: dict[str, float] = {
        "RL steps": len(steps),
        "rollouts of RL": sum(_number(row, "rollouts") for row in steps),
        "completion tokens of RL": sum(_number(row, "rollouts") * _number(row, "length_mean") for row in steps),
        "optimizer updates of RL": sum(updates.values()),
        "trajectories of RFT": sum(_number(manifest.counts, "trajectories") for manifest in rft),
        "tokens of RFT": sum(_number(manifest.metrics, "tokens") for manifest in rft),
        "updates of RFT": sum(_number(manifest.counts, "updates") for manifest in rft),
    }
    for stage in STAGES:
        if seconds := [manifest.seconds for (_, name), manifest in run.manifests.items() if name == stage]:
            costs[f"seconds of {stage}"] = sum(seconds)
    return costs | {"seconds in all": sum(manifest.seconds for manifest in run.manifests.values())}


def _number(row: dict[str, Any], name: str) -> float:
    return float(row.get(name) or 0.0)
