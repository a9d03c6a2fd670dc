"""Write a comparison: one HTML file, every figure as PNG and CSV, every table as CSV, the lineage as JSON."""

from __future__ import annotations

from pathlib import Path

from rloop_core.results.compare.comparison import Comparison
from rloop_core.results.compare.figures import draw
from rloop_core.results.compare.page import render
from rloop_core.results.page import default_folder, writable_folder, write_files
from rloop_core.results.report.lineage import artifact_table
from rloop_core.results.report.trajectories import EXPERTS_NAME, write_expert_keys
from rloop_core.results.study.forgetting import forgetting_table
from rloop_core.results.tables import Table

HTML_FILE = "compare.html"


def write_comparison(comparison: Comparison, out: Path | None = None) -> Path:
    """Write a comparison into a folder; returns the HTML file's path.

    By default it is `<store>/<run>/compare-<vanilla>`, or `.rloop/reports/<run>+<vanilla>` if the store is remote.

    Raises:
        StoreError: The folder cannot be written.
    """
    ours, theirs = (arm.run for arm in comparison.arms)
    out = out or default_folder(ours.store, [ours.name, theirs.name], f"compare-{theirs.name}")
    with writable_folder(out):
        figures = draw(comparison)
        forgotten = [one for of_set in comparison.transitions if of_set.blocks for one in of_set.blocks.forgetting]
        tables = (
            comparison.table.to_table(),
            _histories_table(comparison),
            forgetting_table(comparison.record.titles, forgotten),
            comparison.compute,
            _lineage_table(comparison),
        )
        lineages = ",\n".join(lineage.to_json() for lineage in comparison.lineages)
        texts = {"lineage.json": f"[{lineages}]\n", HTML_FILE: render(comparison, figures)}
        refined = {arm.run.name: arm.run for arm in comparison.arms if arm.run.config.arm == "rloop"}
        write_expert_keys(refined.values(), out / EXPERTS_NAME)
        write_files(out, figures.every, [table for table in tables if table.rows], texts)
    return out / HTML_FILE


def _histories_table(comparison: Comparison) -> Table:
    """One row a set, arm and problem."""
    rows = [
        (of_set.label, arm.title, one.problem_id, one.kind, one.told, " ".join(map(str, one.correct)))
        for of_set in comparison.transitions
        for arm in of_set.arms
        for one in arm.histories
    ]
    return Table("histories", ("set", "arm", "problem_id", "kind", "history", "correct"), tuple(rows))


def _lineage_table(comparison: Comparison) -> Table:
    """Every artifact of both arms, one row each."""
    tables = {arm.run.name: artifact_table(arm.run) for arm in comparison.arms}
    columns = next(iter(tables.values())).columns
    rows = [(run, *row) for run, table in tables.items() for row in table.rows]
    return Table("lineage", ("run", *columns), tuple(rows))
