"""`rloop gc`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from rloop_core.cli.options import age, json_option, store_option
from rloop_core.cli.output import console, plain_table, print_json

if TYPE_CHECKING:
    from rloop_core.stages.garbage import Garbage


@click.command("gc")
@click.argument("runs", nargs=-1, metavar="[RUN]...")
@store_option
@click.option("--dry-run", is_flag=True, help="Show what would be deleted, and delete nothing.")
@click.option("--yes", is_flag=True, help="Delete without asking; required where stdin is no terminal.")
@click.option(
    "--older-than", type=age, default="24h", show_default=True, metavar="AGE",
    help="Keep what is younger, by the store's own clock: another process may be about to publish it.",
)  # fmt: skip
@json_option
def command(runs: tuple[str, ...], store: str, dry_run: bool, yes: bool, older_than: float, as_json: bool) -> None:
    """Delete the garbage of the named runs, or of all runs: what a store holds and nothing refers to.

    Garbage is: files of artifacts that were superseded or never finished, scratch of finished stages (local stores),
    incomplete multipart uploads (S3), and temporary files of killed writes. Everything that a manifest names is kept,
    and so are records, problem sets and everything unknown. A run that a process is working on is skipped.

    Deleting cannot be undone: the command lists the garbage and asks first. --yes skips the question.

    \b
    Examples:
      rloop gc --store s3://bucket/rloop --dry-run
      rloop gc demo --older-than 7d --yes
    """
    import sys

    from rloop_core.stages.garbage import delete_garbage, find_garbage
    from rloop_core.store import Store

    asks = not dry_run and not yes
    if asks and (as_json or not sys.stdin.isatty()):
        raise click.UsageError("stdin is no terminal to ask on: give --yes to delete, or --dry-run to look")
    object_store = Store(store)
    all_garbage = find_garbage(object_store, runs, older_than)
    if not as_json:
        _show(all_garbage, "would be deleted" if dry_run else "to delete")
    deleted = [garbage for garbage in all_garbage if garbage.items]
    if dry_run or (asks and deleted and not click.confirm("Delete this?", default=False)):
        deleted = []
    elif deleted:
        deleted = delete_garbage(object_store, deleted, older_than)
        if not as_json:
            _show(deleted, "deleted")
    if as_json:
        by_run = {garbage.run: garbage for garbage in deleted}
        all_garbage = [by_run.get(garbage.run, garbage) for garbage in all_garbage]
        print_json(_plain(object_store.uri, older_than, all_garbage, dry_run))


def _plain(store: str, older_than: float, all_garbage: Sequence[Garbage], dry_run: bool) -> dict[str, Any]:
    return {
        "store": store,
        "older_than_seconds": older_than,
        "deleted": not dry_run,
        "bytes": sum(garbage.bytes for garbage in all_garbage),
        "runs": [
            {
                "run": garbage.run,
                "bytes": garbage.bytes,
                "items": [
                    {"key": item.entry.key, "bytes": item.entry.bytes, "why": item.why, "upload": item.entry.upload}
                    for item in garbage.items
                ],
                "too_young": garbage.younger,
                "skipped": garbage.skipped,
                "notes": garbage.notes,
            }
            for garbage in all_garbage
        ],
    }


def _show(all_garbage: Sequence[Garbage], what: str) -> None:
    """Print a line for each run and reason, the notes and the sum."""
    from rich.text import Text

    from rloop_core.results.tables import size

    table = plain_table("run", "items", "size", "why", right=("items", "size"))
    for garbage in all_garbage:
        counts, sizes = Counter(item.why for item in garbage.items), Counter[str]()
        for item in garbage.items:
            sizes[item.why] += item.entry.bytes
        for why in sorted(counts):
            table.add_row(Text(garbage.run), f"{counts[why]:,}", size(sizes[why]), why)
    out = console()
    if table.rows:
        out.print(table)
    for garbage in all_garbage:
        if garbage.skipped:
            out.print(Text(f"{garbage.run}: left alone, {garbage.skipped}"))
        for note in garbage.notes:
            out.print(Text(f"note: {note}"))
    young = sum(garbage.younger for garbage in all_garbage)
    kept = f"; {young:,} more are too young" if young else ""
    total = sum(len(garbage.items) for garbage in all_garbage)
    out.print(f"{what}: {total:,} items, {size(sum(garbage.bytes for garbage in all_garbage))}{kept}")
