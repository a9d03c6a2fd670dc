"""`rloop report`."""

from __future__ import annotations

from pathlib import Path

import click

from rloop_core.cli.options import CACHE_FOLDER, FOLDER, json_option, store_option
from rloop_core.cli.output import print_json


@click.command("report")
@click.argument("run")
@click.argument("control", required=False)
@store_option
@click.option(
    "--out", type=FOLDER,
    help="Folder of the report.  [default: <store>/RUN/report or RUN/report-CONTROL, else .rloop/reports/RUN+CONTROL]",
)  # fmt: skip
@click.option("--force", is_flag=True, help="Compare runs that are not comparable; the page warns about it.")
@json_option
def command(
    run: str,
    control: str | None,
    store: str,
    out: Path | None,
    force: bool,
    as_json: bool,
) -> None:
    """Write a self-contained HTML report of a run, with a PNG and a CSV of every figure and table.

    With CONTROL it is RUN against its control: the paper's Table 1 and figures 1 to 6, with error bars. CONTROL is the
    run that `rloop run --arm vanilla-rl` made with RUN's config, or another RLoop run: an ablation. Runs that differ in
    anything but the method are refused. Matrices and curves over RL steps need explore.snapshot_every and
    evaluate.snapshots=true. Works at any time: what is not computed yet is left out, and the page says so.

    \b
    Examples:
      rloop report demo --store .rloop/store --out demo-report
      rloop report demo demo-vanilla-rl
    """
    from rloop_core.results.page import write_report
    from rloop_core.store import Store

    runs = [run, control] if control else [run]
    page, report = write_report(Store(store), runs, out, CACHE_FOLDER, force=force)
    assert report is not None
    notes = report.results.notes
    for reason in report.results.not_comparable:
        click.echo(f"forced: {reason}", err=True)
    if as_json:
        files = sorted(str(path) for path in page.parent.iterdir())
        print_json({**report.to_dict(), "report": str(page), "files": files})
        return
    for note in notes if control else ():
        click.echo(f"note: {note}", err=True)
    click.echo(page)
