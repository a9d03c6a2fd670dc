"""What `python -m benchmarks.scale` printed, as Markdown tables: `python -m benchmarks.scale.tables FILE...`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure import markdown_table

_COMMANDS = {
    "unbegun": "ask what is missing: nothing is there",
    "remaining": "ask what is missing: all is there",
    "check": "find every stage whole, files read",
    "status": "`rloop status`",
    "report": "`rloop report`",
    "garbage": "`rloop gc --dry-run`",
}
_TABLES = ("flow_run", "flow_run_state", "task_run", "task_run_state", "log", "artifact", "events", "event_resources")
_RUN_FIGURES = (
    ("failed runs", "failed", "d"),
    ("lines of errors in the server's log", "complaints", "d"),
    ("seconds between two stages of a run, median", "gap_median", ".2f"),
    ("95th percentile", "gap_p95", ".2f"),
    ("most", "gap_most", ".2f"),
    ("median of the runs' first tenths", "gap_first", ".2f"),
    ("median of the runs' last tenths", "gap_last", ".2f"),
    ("processor seconds a stage: flow", "flow_cpu_a_stage", ".3f"),
    ("processor seconds a stage: server", "server_cpu_a_stage", ".3f"),
    ("memory of a flow process, MiB", "flow_mib", ".0f"),
    ("memory of the server, MiB", "server_mib", ".0f"),
    ("others' load on the machine", "load", ".0f"),
)
_ENDS = ("first", "last")
Row = Mapping[str, Any]


def stores(rows: Sequence[Row]) -> list[str]:
    """Return the table of a run that grows: one column a length."""
    cells = [
        ("objects", *(f"{row['objects']['objects']:,}" for row in rows)),
        *((f"seconds around a stage, {key} tenth", *(f"{row['build'][key]:.3f}" for row in rows)) for key in _ENDS),
        ("processor seconds a stage", *(f"{row['build']['cpu'] / max(1, row['build']['stages']):.3f}" for row in rows)),
    ]
    if any(row["build"]["requests_first"] for row in rows):
        for key in _ENDS:
            counts = (f"{row['build'][f'requests_{key}']:.0f}" for row in rows)
            cells.append((f"requests an iteration, {key} half", *counts))
    cells += [(title, *(_cost(row[command]) for row in rows)) for command, title in _COMMANDS.items()]
    return markdown_table(("", *(f"{row['iterations']:,} iterations" for row in rows)), cells)


def runs(rows: Sequence[Row]) -> list[str]:
    """Return the table of runs at one server: one column a measurement."""
    cells = [
        (title, *(format(row[key], form) if key in row else "" for row in rows)) for title, key, form in _RUN_FIGURES
    ]
    cells += [(f"rows a stage: {table}", *(f"{_a_stage(row, table):.1f}" for row in rows)) for table in _TABLES]
    cells.append(("KiB of database a stage", *(f"{_a_stage(row, 'bytes') / 1024:.0f}" for row in rows)))
    titles = (f"{row['runs']} run{'s' if row['runs'] > 1 else ''}, {row['iterations']} iterations" for row in rows)
    return markdown_table(("", *titles), cells)


def records(rows: Sequence[Row]) -> list[str]:
    """Return the table of a phase that grows: one column a length."""
    cells = [
        ("GiB of shards", *(f"{row['made']['gib']:.2f}" for row in rows)),
        *((stage, *(_cost(row[stage]) for row in rows)) for stage in ("harvest", "filter")),
        ("expert set", *(f"{row['filter']['experts']:,}" for row in rows)),
    ]
    return markdown_table(("rollouts", *(f"{row['rows']:,}" for row in rows)), cells)


def _a_stage(row: Row, table: str) -> float:
    return float(row["rows"].get(table, 0)) / max(1, int(row["stages"]))


def _cost(figures: Row) -> str:
    asked = f", {figures['all_requests']:,} requests" if figures.get("all_requests") else ""
    return f"{figures['seconds']:.1f} s ({figures['cpu']:.1f} s of processor), {figures['peak_mib']:.0f} MiB{asked}"


def main(files: Iterable[str]) -> None:
    """Print one table for each part in the files."""
    by_part: dict[str, list[Row]] = {}
    for name in files:
        for line in Path(name).read_text().splitlines():
            if line.startswith("{"):
                row = json.loads(line)
                by_part.setdefault(row["part"], []).append(row)
    makers = {"store": stores, "s3": stores, "flow": runs, "runs": runs, "record": records}
    for part, rows in by_part.items():
        print(f"\n{part}\n", *makers[part](rows), sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
