"""`rloop status`."""

from __future__ import annotations

from typing import Any

import click

from rloop_core.cli.options import CACHE_FOLDER, json_option, store_option
from rloop_core.cli.output import console, plain_table, print_json

_STYLES = {"done": "green", "running": "bold cyan", "interrupted": "yellow", "changed": "yellow", "missing": "dim"}
_OPEN = ("running", "interrupted", "changed", "missing")
"""States of an unfinished run: the first of these that one of its stages has."""


@click.command("status")
@click.argument("run", required=False)
@store_option
@json_option
def command(run: str | None, store: str, as_json: bool) -> None:
    """Show which stages of a run are done, running or missing, with their key figures. Writes nothing.

    Without RUN, lists the runs of the store.

    `interrupted`: started, not finished, and no process is working on it; `rloop run` continues it.
    `changed`: done with another config, policy, problem set or version than the next start has, or builds on such a
    stage; `rloop run` would compute it again, and says so.

    \b
    Examples:
      rloop status
      rloop status demo --store s3://bucket/rloop
    """
    from rloop_core.results.status import run_status, runs_status
    from rloop_core.store import Store

    if run is not None:
        status = run_status(Store(store), run, CACHE_FOLDER)
    else:
        status = {"store": store, "runs": runs_status(Store(store), CACHE_FOLDER)}
    if as_json:
        print_json(status)
    elif run is not None:
        _show(status)
    else:
        _show_runs(store, status["runs"])


def _show_runs(store: str, runs: list[dict[str, Any]]) -> None:
    from rich.text import Text

    out = console()
    if not runs:
        out.print(Text(f"{store} holds no runs; rloop run starts one"))
        return
    table = plain_table("run", "stages", "state", "holder")
    for status in runs:
        if "error" in status:
            table.add_row(Text(status["run"]), "", Text("unreadable", style="red"), Text(status["error"]))
            continue
        counts = status["counts"]
        state = "done" if status["complete"] else next(name for name in _OPEN if counts[name])
        done = f"{counts['done']} of {sum(counts.values())}"
        table.add_row(Text(status["run"]), done, Text(state, style=_STYLES[state]), Text(status["holder"]))
    out.print(table)


def _show(status: dict[str, Any]) -> None:
    from rich.text import Text

    from rloop_core.results.progress import duration, stage_label

    table = plain_table("stage", "state", "time", "result", right=("time",))
    for row in status["stages"]:
        state = Text(row["state"], style=_STYLES[row["state"]])
        seconds = duration(row["seconds"]) if row["seconds"] is not None else ""
        table.add_row(stage_label(row["stage"], row["iteration"]), state, seconds, Text(row["result"]))
    out = console()
    out.print(table)
    counts = ", ".join(f"{count} {state}" for state, count in status["counts"].items() if count)
    out.print(Text(f"{status['run']}: {counts}; {status['holder']}"))
    if status["sampled_by"]:
        out.print(Text(f"completions sampled by {status['sampled_by']}"))
    for note in status["notes"]:
        out.print(Text(f"note: {note}"))
