"""How far a run has come, from its store and, where it is computed here, its scratch folder; nothing is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rloop_core.cli.formatting import in_words
from rloop_core.errors import RLoopError
from rloop_core.results.report.selection import selected
from rloop_core.results.run_record import RunRecord, read_run
from rloop_core.stages.order import stages_of
from rloop_core.stages.run_record import runs_of
from rloop_core.stages.runner import StageRunner
from rloop_core.store import Store, stage_folder
from rloop_core.store.lease import holder_in_words, holder_is_gone, holder_is_here, read_holder

STATES = ("done", "running", "interrupted", "changed", "missing")


def run_status(store: Store, name: str, cache: Path) -> dict[str, Any]:
    """Every stage with its state, seconds and result; who holds the run; the checkpoint that its config chooses.

    Raises:
        StoreError: There is no such run.
    """
    run = read_run(store, name, cache)
    holder, alive = _holder(store, name)
    scratch = StageRunner(run.config, store, None).scratch()
    stages = [_stage(run, iteration, stage, scratch, alive) for iteration, stage in stages_of(run.config)]
    chosen = run.read("what to select from", lambda: selected(run), None)
    return {
        "run": name,
        "store": store.uri,
        "iterations": run.config.iterations,
        "complete": all(row["state"] == "done" for row in stages),
        "counts": {state: sum(row["state"] == state for row in stages) for state in STATES},
        "holder": holder,
        "stages": stages,
        "drawn_by": run.drawn_by,
        "selected": chosen.to_dict() if chosen else None,
        "selected_in_words": chosen.sentence() if chosen else "",
        "notes": [note for note in run.notes if note != run.incomplete],
    }


def runs_status(store: Store, cache: Path) -> list[dict[str, Any]]:
    """`run_status` of every run of a store, by name; of one that cannot be read `run` and `error` alone.

    Raises:
        StoreError: The store cannot be read.
    """
    return [_status_or_error(store, name, cache) for name in runs_of(store)]


def _status_or_error(store: Store, name: str, cache: Path) -> dict[str, Any]:
    try:
        return run_status(store, name, cache)
    except RLoopError as error:
        return {"run": name, "error": str(error)}


def _stage(run: RunRecord, iteration: int, stage: str, scratch: Path, alive: bool | None) -> dict[str, Any]:
    row: dict[str, Any] = {"iteration": iteration, "stage": stage, "seconds": None, "digest": None, "result": ""}
    manifest = run.manifest(iteration, stage)
    work = scratch / stage_folder(run.name, iteration, stage)
    started = next((folder for folder in sorted(work.glob("*")) if folder.is_dir()), None) if work.is_dir() else None
    if manifest is not None and manifest.identity.get("config") == run.config.stage_identity(stage):
        words = in_words(stage, manifest.metrics)
        done = {"seconds": manifest.seconds, "digest": manifest.digest, "metrics": manifest.metrics, "result": words}
        return {**row, "state": "done", **done}
    if started is not None:
        return {**row, "state": "running" if alive else "interrupted", "result": _steps(run, stage, started)}
    if manifest is not None:
        return {**row, "state": "changed", "digest": manifest.digest, "result": "made under another config"}
    return {**row, "state": "missing"}


def _steps(run: RunRecord, stage: str, work: Path) -> str:
    from rloop_core.training.metrics_log import read_rows

    if stage != "explore":
        return ""
    rows = read_rows(work / "metrics.jsonl")
    reward = f", reward {rows[-1]['reward']:+.2f}" if rows else ""
    return f"RL step {len(rows)} of {run.config.explore.steps}{reward}"


def _holder(store: Store, name: str) -> tuple[str, bool | None]:
    """Who holds the run's lease, in words, and whether that process lives (None: nobody holds it)."""
    lease = read_holder(store, f"{name}/lease.json")
    if lease is None:
        return "nobody is working on it", None
    who = holder_in_words(lease)
    if not holder_is_here(lease):
        return f"leased by {who}", True
    if holder_is_gone(lease):
        return f"{who} died while working on it", False
    return f"{who} is working on it", True
