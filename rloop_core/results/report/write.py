"""Write a report: one HTML file that needs nothing else, and a PNG and a CSV of every figure and table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rloop_core import __version__
from rloop_core.errors import StoreError
from rloop_core.results.plotting import Picture, Table
from rloop_core.results.report import figures
from rloop_core.results.report.data import ledger_table, set_table
from rloop_core.results.report.evaluation import EvaluationRow, evaluation_rows
from rloop_core.results.report.lineage import Lineage, artifact_table, lineage_of
from rloop_core.results.report.phases import ledgers, rl_steps, stage_seconds, success_rate_lists
from rloop_core.results.report.reading import RunRecord, read_run
from rloop_core.results.report.rollouts import EXPERTS_NAME, write_expert_keys
from rloop_core.results.report.samples import Sample, sample_trajectories
from rloop_core.results.report.selection import Selected, read_selected
from rloop_core.store import Store, fingerprint
from rloop_core.training.metrics_log import drift_note

HTML_FILE = "report.html"


@dataclass(frozen=True)
class RunReport:
    """Everything that the page says about one run, figures apart."""

    run: RunRecord
    steps: list[dict[str, Any]]
    evaluation: list[EvaluationRow]
    ledgers: dict[int, dict[str, Any]]
    success_rates: dict[int, list[float]]
    selected: Selected | None
    samples: list[Sample]
    artifacts: Table
    lineage: Lineage


def default_folder(store: Store, runs: Sequence[str]) -> Path:
    """`<store>/<run>/report` for one run in a local store, else `.rloop/reports/<run>[+<run>]`."""
    if store.is_local and len(runs) == 1:
        return store.local_path(f"{runs[0]}/report")
    return Path(".rloop/reports") / "+".join(runs)


def write_report(
    store: Store,
    runs: Sequence[str | RunRecord],
    out: Path | None,
    cache: Path,
    *,
    keep_current: bool = False,
) -> Path:
    """Report on one or more runs of a store; returns the HTML file's path.

    Args:
        store: The object store.
        runs: Their names, or the runs as they were read just now.
        out: Folder; None takes `default_folder`.
        cache: Folder for copies of files of remote stores.
        keep_current: Leave a report alone that shows these very artifacts already.

    Raises:
        StoreError: There is no such run, or the folder cannot be written.
    """
    from rloop_core.results.report.page import render

    records = [read_run(store, run, cache) if isinstance(run, str) else run for run in runs]
    out = out or default_folder(store, [record.name for record in records])
    page, content = out / HTML_FILE, content_key(records)
    if keep_current and _shows(page, content):
        return page
    parts = [(part, draw(part)) for part in map(gather, records)]
    try:
        out.mkdir(parents=True, exist_ok=True)
        for part, pictures in parts:
            _write_files(part, pictures, out, f"{part.run.name}-" if len(parts) > 1 else "")
        page.write_text(render(parts, content), encoding="utf-8")
    except OSError as error:
        fix = "name a writable folder with --out"
        raise StoreError(f"cannot be written: {error.strerror or error}", field=str(out), fix=fix) from error
    return page


def content_key(runs: Sequence[RunRecord]) -> str:
    """Hash of everything that a report of these runs is made from."""
    parts = [
        {
            "run": run.name,
            "config": run.config.model_dump(mode="json"),
            "notes": run.notes,
            "data": run.data.to_dict() if run.data else None,
            "artifacts": [[one.folder, one.digest, one.fingerprint, one.created_at] for one in run.manifests.values()],
        }
        for run in runs
    ]
    return fingerprint({"rloop": __version__, "runs": parts})


def _shows(page: Path, content: str) -> bool:
    try:
        with open(page, encoding="utf-8") as stream:
            return content in stream.read(2_000)
    except (OSError, UnicodeDecodeError):
        return False


def gather(run: RunRecord) -> RunReport:
    """Read what the report needs; what is missing is left out and noted."""
    steps = rl_steps(run)
    if note := drift_note(steps, run.config.placement.vllm.drift_alarm):
        run.note(note)
    return RunReport(
        run=run,
        steps=steps,
        evaluation=evaluation_rows(run),
        ledgers=ledgers(run),
        success_rates=success_rate_lists(run),
        selected=read_selected(run),
        samples=sample_trajectories(run),
        artifacts=artifact_table(run),
        lineage=lineage_of(run),
    )


def draw(part: RunReport) -> dict[str, Picture]:
    """Every figure that there are numbers for, by name."""
    drawn = (
        figures.gains(part.evaluation),
        figures.learning(part.steps),
        figures.health(part.steps),
        figures.funnel(part.ledgers),
        figures.success_rates(part.success_rates, part.run.config.filter.threshold),
        figures.seconds(stage_seconds(part.run)),
    )
    return {one.name: one for one in drawn if one}


def evaluation_table(rows: Sequence[EvaluationRow]) -> Table:
    """The evaluation in long form: one row a set, policy and metric."""
    columns = ("set", "policy", "metric", "value", "low", "high", "minus_base", "minus_base_low", "minus_base_high",
               "problems", "samples", "truncated", "mean_length", "sampling_sd")  # fmt: skip
    long = []
    for row in rows:
        for name, value in row.metrics.items():
            gain = row.differences.get(name, {})
            long.append((row.problem_set, row.policy, name, value["value"], value["low"], value["high"],
                         gain.get("value"), gain.get("low"), gain.get("high"), row.problems, row.samples,
                         row.truncated, row.mean_length, row.sampling_sd))  # fmt: skip
    return Table("evaluation", columns, tuple(long))


def _write_files(part: RunReport, pictures: Mapping[str, Picture], out: Path, prefix: str) -> None:
    for one in pictures.values():
        one.write(out, prefix)
    tables = [evaluation_table(part.evaluation), part.artifacts]
    tables += [table for table in (set_table(part.run), ledger_table(part.run)) if table.rows]
    for table in tables:
        (out / f"{prefix}{table.name}.csv").write_text(table.to_csv(), encoding="utf-8")
    (out / f"{prefix}lineage.json").write_text(part.lineage.to_json(), encoding="utf-8")
    if part.run.config.arm == "rloop":
        write_expert_keys([part.run], out / f"{prefix}{EXPERTS_NAME}")
