"""`rloop gc`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from rloop_core.cli.options import json_option, store_option
from rloop_core.cli.output import console, plain_table, print_json

if TYPE_CHECKING:
    from rloop_core.stages.garbage import Garbage


@click.command("gc")
@click.argument("runs", nargs=-1, metavar="[RUN]...")
@store_option
@click.option("--yes", is_flag=True, help="Delete them; without this they are only shown.")
@json_option
def command(runs: tuple[str, ...], store: str, yes: bool, as_json: bool) -> None:
    """Show the files of the named runs, or of all runs, that no manifest names; with --yes, delete them.

    These are files of artifacts that were superseded or never finished, and temporary files of killed writes. Records,
    problem sets and everything unknown are kept. A run that a process is working on is skipped.

    \b
    Examples:
      rloop gc --store s3://bucket/rloop
      rloop gc demo --yes
    """
    from rloop_core.stages.garbage import delete_garbage, find_garbage
    from rloop_core.store import Store

    object_store = Store(store)
    found = find_garbage(object_store, runs)
    if yes:
        found = delete_garbage(object_store, found)
    if as_json:
        by_run = [
            {"run": one.run, "keys": [entry.key for entry in one.entries], "bytes": one.bytes}
            | {"skipped": one.skipped, "notes": one.notes}
            for one in found
        ]
        print_json({"store": object_store.uri, "deleted": yes, "runs": by_run})
    else:
        _show(found, "deleted" if yes else "to delete, with --yes")


def _show(found: Sequence[Garbage], what: str) -> None:
    """Print a line for each run, the notes and the sum."""
    from rich.text import Text

    from rloop_core.results.tables import size

    table, out = plain_table("run", "files", "size", right=("files", "size")), console()
    for garbage in found:
        table.add_row(Text(garbage.run), f"{len(garbage.entries):,}", size(garbage.bytes))
    out.print(table)
    for garbage in found:
        for note in garbage.notes if garbage.skipped is None else (f"left alone, {garbage.skipped}",):
            out.print(Text(f"{garbage.run}: {note}"))
    total = sum(len(garbage.entries) for garbage in found)
    out.print(f"{what}: {total:,} files, {size(sum(garbage.bytes for garbage in found))}")
