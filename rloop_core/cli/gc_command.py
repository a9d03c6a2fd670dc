"""`rloop gc`."""

from __future__ import annotations

import click

from rloop_core.cli.options import json_option, store_option
from rloop_core.cli.output import console, print_json


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
    from rich.text import Text

    from rloop_core.results.tables import size
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
        done = "deleted" if yes else "to delete, with --yes"
        for garbage in found:
            what = garbage.skipped or f"{len(garbage.entries):,} files, {size(garbage.bytes)} {done}"
            console().print(Text("\n".join(f"{garbage.run}: {line}" for line in (what, *garbage.notes))))
