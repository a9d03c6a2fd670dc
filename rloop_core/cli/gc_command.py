"""`rloop gc`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from rloop_core.cli.options import console, json_option, print_json, store_option

if TYPE_CHECKING:
    from rloop_core.stages.garbage import Garbage

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class Age(click.ParamType):  # type: ignore[type-arg]
    """A time span: `90s`, `30m`, `24h`, `7d`."""

    name = "AGE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Seconds."""
        if isinstance(value, (int, float)):
            return float(value)
        found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", str(value).strip())
        if not found:
            self.fail(f"{value!r} is not a time span such as 24h; units are s, m, h and d", param, ctx)
        return float(found[1]) * _UNITS[found[2]]


@click.command("gc")
@click.argument("runs", nargs=-1, metavar="[RUN]...")
@store_option
@click.option("--dry-run", is_flag=True, help="Show what would be deleted, and delete nothing.")
@click.option("--yes", is_flag=True, help="Delete without asking; needed where nobody can be asked.")
@click.option(
    "--older-than",
    type=Age(),
    default="24h",
    show_default=True,
    help="Leave alone what is younger, by the store's own clock: somebody may be publishing it.",
)
@json_option
def command(runs: tuple[str, ...], store: str, dry_run: bool, yes: bool, older_than: float, as_json: bool) -> None:
    """Delete what a store holds and nothing names, of the named runs or of all.

    That is: files of artifacts that were superseded or never finished, problem sets that no stage of their run reads,
    scratch of finished stages (local stores), multipart uploads that were never completed (S3), and what killed writes
    left. Everything that a manifest, run.json or data.json names is kept, and so is everything that is not understood.
    A run that somebody is working on is left alone.

    Deleting cannot be undone, so the list comes first, and then a question; --yes answers it, as a schedule must.

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
        raise click.UsageError("nobody can be asked here: give --yes to delete, or --dry-run to look")
    place = Store(store)
    found = find_garbage(place, runs, older_than)
    if not as_json:
        _show(found, "would be deleted" if dry_run else "to delete")
    done = [one for one in found if one.items]
    if dry_run or (asks and done and not click.confirm("Delete this?", default=False)):
        done = []
    elif done:
        done = delete_garbage(place, done, older_than)
        if not as_json:
            _show(done, "deleted")
    if as_json:
        print_json(_plain(place.uri, older_than, found if dry_run else _merged(found, done), dry_run))


def _merged(found: Sequence[Garbage], done: Sequence[Garbage]) -> list[Garbage]:
    """Everything that was looked at, with what was really deleted in place of what was planned."""
    deleted = {one.run: one for one in done}
    return [deleted.get(one.run, one) for one in found]


def _plain(store: str, older_than: float, found: Sequence[Garbage], dry_run: bool) -> dict[str, Any]:
    return {
        "store": store,
        "older_than_seconds": older_than,
        "deleted": not dry_run,
        "bytes": sum(one.bytes for one in found),
        "runs": [
            {
                "run": one.run or None,
                "bytes": one.bytes,
                "items": [
                    {"key": item.entry.key, "bytes": item.entry.bytes, "why": item.why, "upload": item.entry.upload}
                    for item in one.items
                ],
                "too_young": one.younger,
                "skipped": one.skipped,
                "notes": one.notes,
            }
            for one in found
        ],
    }


def _show(found: Sequence[Garbage], what: str) -> None:
    """A line a run and reason, then notes, then the sum."""
    from rich.table import Table
    from rich.text import Text

    from rloop_core.results.tables import size

    table = Table(show_edge=False, pad_edge=False, box=None, padding=(0, 2, 0, 0))
    for column, side in (("run", "left"), ("things", "right"), ("size", "right"), ("why", "left")):
        table.add_column(column, justify=side, overflow="fold")  # type: ignore[arg-type]
    rows = 0
    for one in found:
        things, sizes = Counter(item.why for item in one.items), Counter[str]()
        for item in one.items:
            sizes[item.why] += item.entry.bytes
        for why in sorted(things):
            table.add_row(Text(one.run or "(top)"), f"{things[why]:,}", size(sizes[why]), why)
            rows += 1
    out = console()
    if rows:
        out.print(table)
    for one in found:
        if one.skipped:
            out.print(Text(f"{one.run}: left alone, {one.skipped}"))
        for note in one.notes:
            out.print(Text(f"note: {note}"))
    young = sum(one.younger for one in found)
    kept = f"; {young:,} more are too young" if young else ""
    things_in_all = sum(len(one.items) for one in found)
    out.print(f"{what}: {things_in_all:,} things, {size(sum(one.bytes for one in found))}{kept}")
