"""Print a study on the terminal: the headline table and the claims."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rloop_core.results.study.claims import AS_CLAIMED, OPPOSITE, Claim
from rloop_core.results.study.findings import StudyFindings
from rloop_core.results.tables import MetricTable, difference_name, percent_interval

_COLOURS = {OPPOSITE: "bold red", AS_CLAIMED: "green"}


def show_study(findings: StudyFindings, out: Any) -> None:
    """Print to a rich console: what is missing, the table of each set, and the claims."""
    from rich.text import Text

    record = findings.record
    if missing := record.missing():
        names = ", ".join(f"{run.name} ({run.done} of {run.stages} stages)" for run in missing[:6])
        more = f" and {len(missing) - 6} more" if len(missing) > 6 else ""
        out.print(Text(f"not complete: {names}{more}"))
    for reason in record.not_comparable:
        out.print(Text(f"not comparable: {reason}", style="bold red"))
    for note in record.notes:
        out.print(Text(f"note: {note}"))
    for label in record.sets:
        out.print(_table(findings, label).to_terminal())
        out.print()
    if seen := findings.overfitting:
        for fall in seen.falls:
            if fall.metric in record.ends(fall.set):
                title = record.titles[seen.arm]
                out.print(Text(f"overfitting of {title} on {fall.set}, {fall.metric}: {fall.verdict}"))
        out.print()
    if findings.claims:
        out.print(_claims(findings.claims))


def _table(findings: StudyFindings, label: str) -> MetricTable:
    record = findings.record
    rows = [*findings.table.policies[label], *findings.table.differences[label]]
    seeds = max((len(row.seeds) for row in rows), default=0)
    over = "seeds; [95 % interval over problems and seeds]" if seeds > 1 else "seed; [95 % interval over problems]"
    claim = difference_name(*(record.titles[arm] for arm in record.pair))
    return MetricTable(label, rows, f"{record.problems[label]} problems, {seeds} {over}", claim)


def _claims(claims: Sequence[Claim]) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text("The paper's claims, what disagrees first"), title_justify="left")
    for name in ("claim", "set", "measured"):
        table.add_column(name)
    table.add_column("found, points", justify="right")
    table.add_column("outcome")
    for claim in claims:
        seeds = ", one seed" if len(claim.seeds) == 1 else ""  # its interval knows nothing of seeds
        outcome = Text(claim.outcome + seeds, style=_COLOURS.get(claim.outcome, ""))
        found = percent_interval(claim.effect, "+")
        table.add_row(Text(claim.claim), Text(claim.set), Text(claim.quantity), Text(found), outcome)
    return table
