"""What `python -m benchmarks.scale` printed, as Markdown tables: `python -m benchmarks.scale.tables FILE...`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

_LOOKS = {
    "unbegun": "ask what is missing: nothing is there",
    "remaining": "ask what is missing: all is there",
    "check": "find every stage whole, files read",
    "status": "`rloop status`",
    "report": "`rloop report`",
    "garbage": "`rloop gc --dry-run`",
}
_TABLES = ("flow_run", "flow_run_state", "task_run", "task_run_state", "log", "artifact", "events", "event_resources")
Row = Mapping[str, Any]


def stores(rows: Sequence[Row]) -> list[str]:
    """A run that grows: one column a length."""
    lines = [_line("", *(f"{row['iterations']:,} iterations" for row in rows)), _rule(len(rows))]
    lines.append(_line("objects", *(f"{row['objects']['objects']:,}" for row in rows)))
    for name, key in (("first", "first"), ("last", "last")):
        text = f"seconds around a stage, {name} tenth"
        lines.append(_line(text, *(f"{row['build'][key]:.3f}" for row in rows)))
    lines.append(_line("processor seconds a stage", *(f"{_cpu_a_stage(row['build']):.3f}" for row in rows)))
    if any(row["build"]["requests_first"] for row in rows):
        for name in ("first", "last"):
            asked = (f"{row['build'][f'requests_{name}']:.0f}" for row in rows)
            lines.append(_line(f"requests an iteration, {name} half", *asked))
    for look, title in _LOOKS.items():
        lines.append(_line(title, *(_cost(row[look]) for row in rows)))
    return lines


def runs(rows: Sequence[Row]) -> list[str]:
    """Runs at one server: one column a measurement."""
    lines = [_line("", *(_title(row) for row in rows)), _rule(len(rows))]
    for title, key, form in (
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
    ):
        lines.append(_line(title, *(format(row[key], form) if key in row else "" for row in rows)))
    for table in _TABLES:
        made = (f"{row['rows'].get(table, 0) / max(1, row['stages']):.1f}" for row in rows)
        lines.append(_line(f"rows a stage: {table}", *made))
    size = (f"{row['rows'].get('bytes', 0) / max(1, row['stages']) / 1024:.0f}" for row in rows)
    return [*lines, _line("KiB of database a stage", *size)]


def records(rows: Sequence[Row]) -> list[str]:
    """A phase that grows: one column a length."""
    lines = [_line("rollouts", *(f"{row['rows']:,}" for row in rows)), _rule(len(rows))]
    lines.append(_line("GiB of shards", *(f"{row['made']['gib']:.2f}" for row in rows)))
    lines.append(_line("harvest", *(_cost(row["harvest"]) for row in rows)))
    lines.append(_line("filter", *(_cost(row["filter"]) for row in rows)))
    return [*lines, _line("expert set", *(f"{row['filter']['experts']:,}" for row in rows))]


def _title(row: Row) -> str:
    return f"{row['runs']} run{'s' if row['runs'] > 1 else ''}, {row['iterations']} iterations"


def _cpu_a_stage(build: Row) -> float:
    return float(build["cpu"]) / max(1, int(build["stages"]))


def _cost(one: Row) -> str:
    asked = f", {one['all_requests']:,} requests" if one.get("all_requests") else ""
    return f"{one['seconds']:.1f} s ({one['cpu']:.1f} s of processor), {one['peak_mib']:.0f} MiB{asked}"


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _rule(columns: int) -> str:
    return f"|{'---|' * (columns + 1)}"


def main(files: Iterable[str]) -> None:
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
