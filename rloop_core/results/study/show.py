"""A study on the terminal: the headline table and the claims."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rloop_core.results.study.claims import AS_CLAIMED, OPPOSITE, Claim
from rloop_core.results.study.effects import Effect
from rloop_core.results.study.table import Row
from rloop_core.results.study.write import StudyFindings

_COLOURS = {OPPOSITE: "bold red", AS_CLAIMED: "green"}


def show_study(found: StudyFindings, out: Any) -> None:
    """Print to a rich console: what is missing, the table of each set, and the claims."""
    from rich.text import Text

    record = found.record
    missing = record.missing()
    if missing:
        names = ", ".join(f"{one.name} ({one.done} of {one.stages} stages)" for one in missing[:6])
        more = f" and {len(missing) - 6} more" if len(missing) > 6 else ""
        out.print(Text(f"not complete: {names}{more}"))
    for objection in record.objections:
        out.print(Text(f"not comparable: {objection}", style="bold red"))
    for note in record.notes:
        out.print(Text(f"note: {note}"))
    for label in record.sets:
        out.print(_table(found, label, [*found.table.policies[label], *found.table.differences[label]]))
        out.print()
    if found.overfitting:
        title = record.titles[found.overfitting.arm]
        for one in found.overfitting.falls:
            if one.metric in record.ends(one.set):
                out.print(Text(f"overfitting of {title} on {one.set}, {one.metric}: {one.verdict}"))
        out.print()
    if found.claims:
        out.print(_claims(found.claims))


def _table(found: StudyFindings, label: str, rows: Sequence[Row]) -> Any:
    from rich.table import Table
    from rich.text import Text

    seeds = max((len(row.seeds) for row in rows), default=0)
    over = "seeds; [95 % interval over problems and seeds]" if seeds > 1 else "seed; [95 % interval over problems]"
    caption = f"{len(found.record.problems[label])} problems, {seeds} {over}"
    table = Table(title=Text(label), title_justify="left", caption=Text(caption), caption_justify="left")
    table.add_column("%")
    for metric in found.record.metrics[label]:
        table.add_column(metric, justify="right")
    before = "policy"
    for row in rows:
        if row.kind == "difference" != before:
            table.add_section()
        before = row.kind
        sign = "+" if row.kind == "difference" else ""
        name = row.name.replace("\N{MINUS SIGN}", "-")
        cells = [_value(one, sign) if one else Text("") for one in map(row.cells.get, found.record.metrics[label])]
        claim = row is found.table.difference(label, found.record.study.main, found.record.study.reference)
        table.add_row(Text(name), *cells, style="bold" if claim else "")
    return table


def _claims(claims: Sequence[Claim]) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text("The paper's claims, what disagrees first"), title_justify="left")
    for name in ("claim", "set", "measured"):
        table.add_column(name)
    table.add_column("found, points", justify="right")
    table.add_column("outcome")
    for one in claims:
        outcome = Text(one.outcome, style=_COLOURS.get(one.outcome, ""))
        quantity = one.quantity.replace("\N{MINUS SIGN}", "-")
        table.add_row(Text(one.claim), Text(one.set), Text(quantity), _value(one.effect, "+"), outcome)
    return table


def _value(one: Effect, sign: str) -> Any:
    from rich.text import Text

    ends = "" if one.low is None or one.high is None else f" [{100 * one.low:{sign}.1f}, {100 * one.high:{sign}.1f}]"
    return Text(f"{100 * one.value:{sign}.1f}{ends}")
