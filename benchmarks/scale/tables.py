"""What `python -m benchmarks.scale` printed, as Markdown tables: `python -m benchmarks.scale.tables FILE...`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.measure import markdown_table

_COST = "{X[seconds]:.1f} s ({X[cpu]:.1f} s of processor), {X[peak_mib]:.0f} MiB, {X[all_requests]:,} requests"
_STORE = {
    "": "{iterations:,} iterations",
    "objects": "{objects[objects]:,}",
    "seconds around a stage, first tenth": "{build[first]:.3f}",
    "seconds around a stage, last tenth": "{build[last]:.3f}",
    "processor seconds a stage": "{build[cpu_a_stage]:.3f}",
    "requests an iteration, first half": "{build[requests_first]:.0f}",
    "requests an iteration, last half": "{build[requests_last]:.0f}",
    "ask what is missing: nothing is there": _COST.replace("X", "unbegun"),
    "ask what is missing: all is there": _COST.replace("X", "remaining"),
    "find every stage whole, files read": _COST.replace("X", "check"),
    "`rloop status`": _COST.replace("X", "status"),
    "`rloop report`": _COST.replace("X", "report"),
    "`rloop gc --dry-run`": _COST.replace("X", "garbage"),
}
_ROWS = ("flow_run", "flow_run_state", "task_run", "task_run_state", "log", "artifact", "events", "event_resources")
_RUNS = {
    "": "{runs} runs, {iterations} iterations",
    "failed runs": "{failed}",
    "lines of errors in the server's log": "{complaints}",
    "seconds between two stages of a run, median": "{gap_median:.2f}",
    "95th percentile": "{gap_p95:.2f}",
    "most": "{gap_most:.2f}",
    "median of the runs' first tenths": "{gap_first:.2f}",
    "median of the runs' last tenths": "{gap_last:.2f}",
    "processor seconds a stage: flow": "{flow_cpu_a_stage:.3f}",
    "processor seconds a stage: server": "{server_cpu_a_stage:.3f}",
    "memory of a flow process, MiB": "{flow_mib:.0f}",
    "memory of the server, MiB": "{server_mib:.0f}",
    "others' load on the machine": "{load:.0f}",
    **{f"rows a stage: {table}": f"{{rows_a_stage[{table}]:.1f}}" for table in _ROWS},
    "bytes of database a stage": "{rows_a_stage[bytes]:,.0f}",
}
_RECORD = {
    "rollouts": "{rows:,}",
    "GiB of shards": "{made[gib]:.2f}",
    "harvest": _COST.replace("X", "harvest"),
    "filter": _COST.replace("X", "filter"),
    "expert set": "{filter[experts]:,}",
}
TABLES = {"store": _STORE, "s3": _STORE, "flow": _RUNS, "runs": _RUNS, "record": _RECORD}
"""For each part: the first cell of every line, and the format of the others."""


def main(files: list[str]) -> None:
    """Print one table for each part in the files, with a column for each of its rows."""
    lines = [line for name in files for line in Path(name).read_text().splitlines() if line.startswith("{")]
    rows = [json.loads(line) for line in lines]
    for part in dict.fromkeys(row["part"] for row in rows):
        columns = [row for row in rows if row["part"] == part]
        cells = [(title, *(_cell(form, row) for row in columns)) for title, form in TABLES[part].items()]
        print(f"\n{part}\n", *markdown_table(cells[0], cells[1:]), sep="\n")


def _cell(form: str, row: dict[str, Any]) -> str:
    try:
        return form.format(**row)
    except KeyError:  # SQLite's rows are not counted, and a single gap has no spread
        return ""


if __name__ == "__main__":
    main(sys.argv[1:])
