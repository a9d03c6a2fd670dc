"""`rloop export`."""

from __future__ import annotations

import click

from rloop_core.cli.options import BEST, CACHE_FOLDER, iteration_or_best, json_option, store_option
from rloop_core.cli.output import print_json
from rloop_core.printable import printable_line


@click.command("export")
@click.argument("run")
@click.option("--to", "target", required=True, metavar="PATH_OR_HUB", help="A folder, or hub:owner/name.")
@store_option
@click.option(
    "--iteration", type=iteration_or_best, metavar="I|best",
    help="Export theta_(I+1), the policy at the end of iteration I, or the best checkpoint on the set that "
    "evaluate.select_on names.  [default: the last finished]",
)  # fmt: skip
@click.option(
    "--force", is_flag=True,
    help="Write into a folder that is not empty: an older model's files are removed and named, other files stay.",
)  # fmt: skip
@click.option("--public", is_flag=True, help="Make a new hub repository public; it is private otherwise.")
@json_option
def command(
    run: str, target: str, store: str, iteration: int | str | None, force: bool, public: bool, as_json: bool
) -> None:
    """Write a run's policy, checked against its digests, with a model card: base, config, metrics, lineage.

    \b
    Examples:
      rloop export demo --to ./theta
      rloop export demo --to ./theta --iteration best
      rloop export demo --to hub:me/demo-rloop
    """
    from pathlib import Path

    from rloop_core.results.export import HUB_PREFIX, export_policy, policy_of, selected_policy, upload_policy
    from rloop_core.results.run_reader import read_run
    from rloop_core.results.selection import must_be_selected
    from rloop_core.store import Store

    record = read_run(Store(store), run, CACHE_FOLDER)
    chosen = must_be_selected(record) if iteration == BEST else None
    if chosen:
        policy = selected_policy(record, chosen)
    else:
        policy = policy_of(record, None if iteration is None else int(iteration))
    removed: list[str] = []
    if target.startswith(HUB_PREFIX):
        place = upload_policy(record, target.removeprefix(HUB_PREFIX), policy, private=not public)
    else:
        place = str(Path(target).expanduser())
        removed = export_policy(record, Path(place), policy, force=force)
    if as_json:
        result = {"run": run, "iteration": policy.iteration, "policy": policy.name, "digest": policy.manifest.digest}
        print_json({**result, "to": place, "removed": removed, "selected": chosen.to_dict() if chosen else None})
        return
    click.echo(f"{policy.name} of {run} is in {place}")
    if removed:
        click.echo(f"removed, of an older model: {printable_line(', '.join(removed))}")
    if chosen:
        click.echo(f"selected: {chosen.sentence()}")
