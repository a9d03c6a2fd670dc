"""`rloop export`."""

from __future__ import annotations

import click

from rloop_core.cli.options import cache_folder, json_option, print_json, store_option


@click.command("export")
@click.argument("run")
@click.option("--to", "target", required=True, metavar="PATH_OR_HUB", help="A folder, or hub:owner/name.")
@store_option
@click.option(
    "--iteration",
    type=click.IntRange(0),
    default=None,
    metavar="I",
    help="Export what iteration I ended with, theta_(I+1).  [default: the last finished]",
)
@click.option(
    "--force", is_flag=True, help="Write into a folder that is not empty; its other files stay, old weights go."
)
@click.option("--public", is_flag=True, help="Make a new hub repository public; it is private otherwise.")
@json_option
def command(run: str, target: str, store: str, iteration: int | None, force: bool, public: bool, as_json: bool) -> None:
    """Write a run's policy, checked against its digests, with a model card: base, config, metrics, lineage.

    \b
    Examples:
      rloop export demo --to ./theta
      rloop export demo --to hub:me/demo-rloop
    """
    from pathlib import Path

    from rloop_core.export.policy import HUB_PREFIX, export_policy, upload_policy
    from rloop_core.report.reading import read_run, theta_name
    from rloop_core.store import Store

    record = read_run(Store(store), run, cache_folder())
    if target.startswith(HUB_PREFIX):
        done, where = upload_policy(record, target.removeprefix(HUB_PREFIX), iteration, private=not public)
    else:
        where = str(Path(target).expanduser())
        done = export_policy(record, Path(where), iteration, force=force)
    if as_json:
        manifest = record.manifests[done, "rft"]
        print_json({"run": run, "iteration": done, "policy": theta_name(done), "digest": manifest.digest, "to": where})
    else:
        click.echo(f"{theta_name(done)} of {run} is in {where}")
