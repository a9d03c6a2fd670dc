"""What happened inside the stages: RL steps, the filter's ledger, success rates, seconds."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from rloop_core.json_text import parse_json
from rloop_core.results.report.reading import RunRecord, stage_name
from rloop_core.trajectories import LEDGER_FILE, RATES_FILE

STEPS_FILE = "metrics.jsonl"


def rl_steps(run: RunRecord) -> list[dict[str, Any]]:
    """One row an RL step: the stage's metrics, with `iteration` and `total_step` (RL steps since the run began)."""
    rows: list[dict[str, Any]] = []
    for iteration in run.iterations:
        path = run.file(iteration, "explore", STEPS_FILE)
        if path is not None:
            before = iteration * run.config.explore.steps
            what = f"{STEPS_FILE} of {stage_name(iteration, 'explore')}"
            rows += run.read(what, partial(_steps, path, iteration, before), [])
    return rows


def ledgers(run: RunRecord) -> dict[int, dict[str, Any]]:
    """The filter's report of each iteration: status, threshold, ledger of trajectories and problems left."""
    found = {}
    for iteration in run.iterations:
        path = run.file(iteration, "filter", LEDGER_FILE)
        what = f"{LEDGER_FILE} of {stage_name(iteration, 'filter')}"
        content = run.read(what, partial(_ledger, path), None) if path else None
        if content is not None:
            found[iteration] = content
    return found


def success_counts(run: RunRecord, iteration: int) -> dict[str, tuple[int, int]]:
    """Correct rollouts and attempts of every training problem over one RL phase, by its id."""
    path = run.file(iteration, "harvest", RATES_FILE)
    what = f"{RATES_FILE} of {stage_name(iteration, 'harvest')}"
    return run.read(what, partial(_counts, path), {}) if path else {}


def success_rate_lists(run: RunRecord) -> dict[int, list[float]]:
    """Success rates of all training problems, by iteration."""
    by_iteration = {iteration: success_counts(run, iteration).values() for iteration in run.iterations}
    return {iteration: [right / tries for right, tries in counts] for iteration, counts in by_iteration.items()}


def stage_seconds(run: RunRecord) -> list[dict[str, Any]]:
    """One row an artifact: iteration, stage, seconds, and explore's seconds by phase."""
    return [
        {
            "iteration": iteration,
            "policy": run.policy_name(iteration) if stage == "evaluate" else "",
            "stage": stage,
            "seconds": manifest.seconds,
            "phases": manifest.metrics.get("seconds", {}) if stage == "explore" else {},
        }
        for (iteration, stage), manifest in run.manifests.items()
    ]


def _steps(path: Path, iteration: int, before: int) -> list[dict[str, Any]]:
    from rloop_core.training.metrics_log import read_rows

    return [{"iteration": iteration, "total_step": before + int(row["step"]), **row} for row in read_rows(path)]


def _ledger(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = parse_json(path.read_bytes())
    rows = [{name: row[name] for name in ("step", "trajectories", "problems")} for row in content["ledger"]]
    return {**content, "ledger": rows}


def _counts(path: Path) -> dict[str, tuple[int, int]]:
    import pyarrow.parquet as pq

    table = pq.read_table(path, columns=["problem_id", "correct", "attempts"])
    ids, correct, attempts = (table[name].to_pylist() for name in table.column_names)
    return {problem: (right, tries) for problem, right, tries in zip(ids, correct, attempts, strict=True) if tries}
