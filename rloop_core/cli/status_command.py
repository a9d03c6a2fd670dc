"""`rloop status`."""

from __future__ import annotations

from typing import Any

import click

from rloop_core.cli.options import cache_folder, console, json_option, print_json, store_option

_STYLES = {"done": "green", "running": "bold cyan", "interrupted": "yellow", "changed": "yellow", "missing": "dim"}


@click.command("status")
@click.argument("run")
@store_option
@json_option
def command(run: str, store: str, as_json: bool) -> None:
    """Which stages of a run are done, running or missing, with their key figures. Writes nothing.

    `interrupted`: started, not finished, and nobody is working on it; `rloop run` goes on from there.
    `changed`: done under another config than the run was last started with; `rloop run` computes it again.
    Where the config says on which set to choose (evaluate.select_on), the best checkpoint is named.

    \b
    Example:
      rloop status demo --store s3://bucket/rloop
    """
    from rloop_core.cli.progress_of import run_status
    from rloop_core.store import Store

    status = run_status(Store(store), run, cache_folder())
    if as_json:
        print_json(status)
    else:
        _show(status)


def _show(status: dict[str, Any]) -> None:
    from rich.table import Table
    from rich.text import Text

    from rloop_core.cli.words import duration, stage_name

    table = Table(show_edge=False, pad_edge=False, box=None, padding=(0, 2, 0, 0))
    for column in ("stage", "state", "time", "result"):
        table.add_column(column, justify="right" if column == "time" else "left", overflow="fold")
    for row in status["stages"]:
        state = Text(row["state"], style=_STYLES[row["state"]])
        seconds = duration(row["seconds"]) if row["seconds"] is not None else ""
        table.add_row(stage_name(row["stage"], row["iteration"]), state, seconds, Text(row["result"]))
    out = console()
    out.print(table)
    counts = ", ".join(f"{count} {state}" for state, count in status["counts"].items() if count)
    out.print(Text(f"{status['run']}: {counts}; {status['holder']}"))
    if status["selected"]:
        out.print(Text(f"selected: {status['selected_in_words']}"))
    for note in status["notes"]:
        out.print(Text(f"note: {note}"))
