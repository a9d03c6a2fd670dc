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
@click.option("--dry-run", is_flag=True, help="Show what would be deleted, and delete nothing.")
@click.option("--yes", is_flag=True, help="Delete without asking; required where stdin is no terminal.")
@json_option
def command(runs: tuple[str, ...], store: str, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Delete the files of the named runs, or of all runs, that no manifest names.

    These are files of artifacts that were superseded or never finished, and temporary files of killed writes. Records,
    problem sets and everything unknown are kept. A run that a process is working on is skipped. Deleting cannot be
    undone: the command lists what it would delete and asks first.

    \b
    Examples:
      rloop gc --store s3://bucket/rloop --dry-run
      rloop gc demo --yes
    """
    import sys

    from rloop_core.stages.garbage import delete_garbage, find_garbage
    from rloop_core.store import Store

    asks = not dry_run and not yes
    if asks and (as_json or not sys.stdin.isatty()):
        raise click.UsageError("stdin is no terminal to ask on: give --yes to delete, or --dry-run to look")
    object_store = Store(store)
    found = find_garbage(object_store, runs)
    if not as_json:
        _show(found, "would be deleted" if dry_run else "to delete")
    if not dry_run and any(one.entries for one in found) and (yes or click.confirm("Delete this?", default=False)):
        deleted = {one.run: one for one in delete_garbage(object_store, found)}
        found = [deleted.get(one.run, one) for one in found]
        if not as_json:
            _show(found, "deleted")
    if as_json:
        by_run = [
            {"run": one.run, "bytes": one.bytes, "keys": [entry.key for entry in one.entries], "skipped": one.skipped,
             "notes": one.notes}
            for one in found
        ]  # fmt: skip
        print_json({"store": object_store.uri, "deleted": not dry_run, "runs": by_run})


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
