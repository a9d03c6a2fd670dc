"""Write a report: one HTML file without outside references, and a PNG and a CSV of every figure and table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rloop_core import __version__
from rloop_core.results.page import default_folder, fill_template, writable_folder, write_files
from rloop_core.results.plotting import Picture
from rloop_core.results.report import figures
from rloop_core.results.report.evaluation import EvaluationRow, evaluation_rows, evaluation_tables, long_table
from rloop_core.results.report.lineage import Lineage, artifact_table, lineage_of, lineage_section
from rloop_core.results.report.trajectories import EXPERTS_NAME, Sample, sample_trajectories, write_expert_keys
from rloop_core.results.run_reader import RunRecord, ledgers, read_run, rl_steps, success_rate_lists
from rloop_core.results.selection import Selected, read_selected
from rloop_core.results.tables import Table
from rloop_core.store import Store, fingerprint
from rloop_core.training.metrics_log import drift_note

HTML_FILE = "report.html"
TEMPLATE = "report.html.j2"
_SET_COUNTS = {
    "rows_read": "rows read",
    "duplicates_dropped": "duplicates",
    "conflicting_golds_dropped": "contradictory",
    "malformed_skipped": "malformed",
    "beyond_limit": "beyond limit",
    "contaminated_dropped": "in an evaluation set",
}


@dataclass(frozen=True)
class RunReport:
    """The contents of the page about one run, apart from figures."""

    run: RunRecord
    steps: list[dict[str, Any]]
    evaluation: list[EvaluationRow]
    ledgers: dict[int, dict[str, Any]]
    success_rates: dict[int, list[float]]
    selected: Selected | None
    samples: list[Sample]
    lineage: Lineage


def write_report(
    store: Store, runs: Sequence[str | RunRecord], out: Path | None, cache: Path, *, keep_current: bool = False
) -> Path:
    """Report on one or more runs of a store; return the HTML file's path.

    Args:
        store: The object store.
        runs: Their names, or the runs as just read.
        out: Folder; None takes `<store>/<run>/report` for one run, see `default_folder`.
        cache: Folder for copies of files of remote stores.
        keep_current: Leave a report alone that shows these very artifacts already.

    Raises:
        StoreError: There is no such run, or the folder cannot be written.
    """
    records = [read_run(store, run, cache) if isinstance(run, str) else run for run in runs]
    out = out or default_folder(store, [record.name for record in records], "report" if len(records) == 1 else "")
    page, content = out / HTML_FILE, content_key(records)
    if keep_current and _shows(page, content):
        return page
    parts = [(part, draw(part)) for part in map(gather, records)]
    with writable_folder(out):
        for part, pictures in parts:
            _write_run(part, pictures, out, f"{part.run.name}-" if len(parts) > 1 else "")
        page.write_text(render(parts, content), encoding="utf-8")
    return page


def content_key(runs: Sequence[RunRecord]) -> str:
    """Return a hash of everything that a report of these runs is made from."""
    parts = [
        {
            "run": run.name,
            "config": run.config.model_dump(mode="json"),
            "notes": run.notes,
            "data": run.data.to_dict() if run.data else None,
            "artifacts": [[made.folder, made.digest, made.fingerprint, made.created_at]
                          for made in run.manifests.values()],
        }
        for run in runs
    ]  # fmt: skip
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
        lineage=lineage_of(run),
    )


def draw(part: RunReport) -> dict[str, Picture]:
    """Draw every figure that has numbers, by name."""
    drawn = (
        figures.gains(part.evaluation),
        figures.by_step("learning", part.steps),
        figures.by_step("health", part.steps),
        figures.funnel(part.ledgers),
        figures.success_rates(part.success_rates, part.run.config.filter.threshold),
        figures.seconds([(*key, manifest.seconds) for key, manifest in part.run.manifests.items()]),
    )
    return {picture.name: picture for picture in drawn if picture}


def render(parts: Sequence[tuple[RunReport, Mapping[str, Picture]]], content: str) -> str:
    """Return one HTML document of runs and their figures; `content` is its `content_key`."""
    return fill_template(TEMPLATE, parts=[_context(*part) for part in parts], content=content)


def _context(part: RunReport, pictures: Mapping[str, Picture]) -> dict[str, Any]:
    run = part.run
    made = list(run.manifests.values())
    last = max((datetime.fromisoformat(manifest.created_at).astimezone(UTC) for manifest in made), default=None)
    return {
        "run": run,
        "done": len({manifest.iteration for manifest in made if manifest.stage == "rft"}),
        "seconds": sum(manifest.seconds for manifest in made),
        "updated": last.strftime("%Y-%m-%d %H:%M UTC") if last else "",
        "tables": evaluation_tables(part.evaluation),
        "selected": [(run.name, part.selected)] if part.selected else [],
        "pictures": pictures,
        "samples": part.samples,
        "set_counts": _used_counts(run),
        "lineage": lineage_section(run, part.lineage),
    }


def _write_run(part: RunReport, pictures: Mapping[str, Picture], out: Path, prefix: str) -> None:
    sets = set_table(part.run)
    tables = [long_table(part.evaluation), artifact_table(part.run), *([sets] if sets.rows else [])]
    write_files(out, pictures.values(), tables, {"lineage.json": part.lineage.to_json()}, prefix)
    if part.run.config.arm == "rloop":
        write_expert_keys([part.run], out / f"{prefix}{EXPERTS_NAME}")


def set_table(run: RunRecord) -> Table:
    """Return one row a problem set: its use, its problems, and the reasons why rows of its source were left out."""
    columns = ("set", "use", "problems", *_SET_COUNTS, "golds_refused", "digest")
    rows = [
        (data.label, data.use, data.problems, *(data.ledger.get(name, 0) for name in _SET_COUNTS),
         len(data.golds_refused), data.digest)
        for data in (run.data.sets if run.data else ())
    ]  # fmt: skip
    return Table("problem-sets", columns, tuple(rows))


def _used_counts(run: RunRecord) -> dict[str, str]:
    """Return the counts, with their titles, that are not zero in every problem set."""
    sets = run.data.sets if run.data else ()
    return {name: title for name, title in _SET_COUNTS.items() if any(data.ledger.get(name) for data in sets)}
