"""Write a comparison: one HTML file, every figure as PNG and CSV, every table as CSV, the lineage as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from rloop_core.errors import StoreError
from rloop_core.results.compare.comparison import Comparison
from rloop_core.results.compare.figures import draw
from rloop_core.results.compare.page import render
from rloop_core.results.plotting import Picture
from rloop_core.results.report.lineage import artifact_table
from rloop_core.results.report.trajectories import EXPERTS_NAME, write_expert_keys
from rloop_core.results.tables import Table

HTML_FILE = "compare.html"


def write_comparison(comparison: Comparison, out: Path | None = None) -> Path:
    """Write a comparison into a folder; returns the HTML file's path.

    By default it is `<store>/<run>/compare-<vanilla>`, or `.rloop/reports/<run>+<vanilla>` if the store is remote.

    Raises:
        StoreError: The folder cannot be written.
    """
    ours, theirs = (arm.run for arm in comparison.arms)
    if out is None and ours.store.is_local:
        out = ours.store.local_path(f"{ours.name}/compare-{theirs.name}")
    out = out or Path(".rloop/reports") / f"{ours.name}+{theirs.name}"
    with writable_folder(out):
        figures = draw(comparison)
        tables = (
            comparison.table.to_table(),
            _histories_table(comparison),
            _forgetting_table(comparison),
            comparison.compute.table,
            _lineage_table(comparison),
        )
        lineages = ",\n".join(lineage.to_json() for lineage in comparison.lineages)
        texts = {"lineage.json": f"[{lineages}]\n", HTML_FILE: render(comparison, figures)}
        refined = {arm.run.name: arm.run for arm in comparison.arms if arm.run.config.arm == "rloop"}
        write_expert_keys(refined.values(), out / EXPERTS_NAME)
        write_files(out, figures.every, [table for table in tables if table.rows], texts)
    return out / HTML_FILE


@contextmanager
def writable_folder(out: Path) -> Iterator[None]:
    """Make a folder before the work that fills it, so that a bad one is known at once.

    Raises:
        StoreError: The folder, or a file in it, cannot be written.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        fix = "name a writable folder with --out"
        raise StoreError(f"cannot be written: {error.strerror or error}", field=str(out), fix=fix) from error


def write_files(out: Path, pictures: Iterable[Picture], tables: Iterable[Table], texts: Mapping[str, str]) -> None:
    """Write pictures as PNG and CSV, tables as CSV, and texts by file name into a folder that exists."""
    for picture in pictures:
        picture.write(out, "")
    for table in tables:
        (out / f"{table.name}.csv").write_text(table.to_csv(), encoding="utf-8")
    for name, text in texts.items():
        (out / name).write_text(text, encoding="utf-8")


def _histories_table(comparison: Comparison) -> Table:
    """One row a set, arm and problem."""
    rows = [
        (of_set.label, arm.title, one.problem_id, one.kind, one.told, " ".join(map(str, one.correct)))
        for of_set in comparison.transitions
        for arm in of_set.arms
        for one in arm.histories
    ]
    return Table("histories", ("set", "arm", "problem_id", "kind", "history", "correct"), tuple(rows))


def _forgetting_table(comparison: Comparison) -> Table:
    """Mean forgetting within and across iterations, beside chance: one row a set and block."""
    ours, theirs = (arm.title for arm in comparison.arms)
    columns = ("set", "block", theirs, f"{theirs} by chance", ours, f"{ours} by chance", "difference", "low", "high")
    rows = [
        (of_set.label, *cells, interval.value, interval.low, interval.high)
        for of_set in comparison.transitions
        if of_set.blocks
        for *cells, interval in of_set.blocks.rows()
    ]
    return Table("forgetting", columns, tuple(rows))


def _lineage_table(comparison: Comparison) -> Table:
    """Every artifact of both arms, one row each."""
    tables = {arm.run.name: artifact_table(arm.run) for arm in comparison.arms}
    columns = next(iter(tables.values())).columns
    rows = [(run, *row) for run, table in tables.items() for row in table.rows]
    return Table("lineage", ("run", *columns), tuple(rows))
