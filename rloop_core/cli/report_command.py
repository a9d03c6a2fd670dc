"""`rloop report`."""

from __future__ import annotations

from pathlib import Path

import click

from rloop_core.cli.options import CACHE_FOLDER, FOLDER, json_option, store_option
from rloop_core.cli.output import print_json


@click.command("report")
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@store_option
@click.option(
    "--out", type=FOLDER,
    help="Folder of the report.  [default: <store>/<run>/report, else .rloop/reports/<run>]",
)  # fmt: skip
@click.option(
    "--rollout", metavar="KEY",
    help="Print the record of one rollout as JSON, and write no report. KEY is "
    "ITERATION/STEP/RANK/ATTEMPT/GROUP/SAMPLE, as in a row of the report's experts.csv.",
)  # fmt: skip
@json_option
def command(runs: tuple[str, ...], store: str, out: Path | None, rollout: str | None, as_json: bool) -> None:
    """Write a self-contained HTML report of one or more runs, with a PNG and a CSV of every figure and table.

    Works at any time: the report leaves out what a run has not computed yet, and says so.

    \b
    Example:
      rloop report demo --store .rloop/store --out demo-report
    """
    from rloop_core.store import Store

    if rollout is not None:
        if len(runs) != 1:
            raise click.UsageError("--rollout needs exactly one RUN")
        from rloop_core.results.report.trajectories import RolloutKey, find_rollout
        from rloop_core.results.run_reader import read_run

        print_json(find_rollout(read_run(Store(store), runs[0], CACHE_FOLDER), RolloutKey.parse(rollout)))
        return
    from rloop_core.results.report.write import write_report

    page = write_report(Store(store), runs, out, CACHE_FOLDER)
    if as_json:
        print_json({"report": str(page), "files": sorted(str(path) for path in page.parent.iterdir())})
    else:
        click.echo(page)
