"""`rloop export`."""

from __future__ import annotations

import click

from rloop_core.cli.options import CACHE_FOLDER, json_option, store_option
from rloop_core.cli.output import print_json


@click.command("export")
@click.argument("run")
@click.option("--to", "target", required=True, metavar="PATH", help="A folder, new or empty.")
@store_option
@click.option(
    "--iteration", type=click.IntRange(0), metavar="I",
    help="Export theta_(I+1), the policy at the end of iteration I.  [default: the last finished]",
)  # fmt: skip
@json_option
def command(run: str, target: str, store: str, iteration: int | None, as_json: bool) -> None:
    """Write a run's policy, checked against its digests, with a model card: base, config, metrics, lineage.

    \b
    Examples:
      rloop export demo --to ./theta
      hf upload me/demo-rloop ./theta
    """
    from pathlib import Path

    from rloop_core.results.export import export_policy
    from rloop_core.results.run_reader import read_run
    from rloop_core.store import Store

    place = Path(target).expanduser()
    policy, manifest = export_policy(read_run(Store(store), run, CACHE_FOLDER), place, iteration)
    if as_json:
        result = {"run": run, "iteration": manifest.iteration, "policy": policy, "digest": manifest.digest}
        print_json({**result, "to": str(place)})
        return
    click.echo(f"{policy} of {run} is in {place}")
