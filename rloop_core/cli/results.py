"""`rloop report` and `rloop export`: what a run found, and its policy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from rloop_core.cli.options import CACHE_FOLDER, PATH, json_option, store_option
from rloop_core.cli.output import print_json
from rloop_core.printable import printable_line


@click.command("report")
@click.argument("run")
@click.argument("control", required=False)
@store_option
@click.option(
    "--out", type=PATH,
    help="Folder of the report.  [default: <store>/RUN/report or RUN/report-CONTROL, else .rloop/reports/RUN+CONTROL]",
)  # fmt: skip
@click.option(
    "--solved", default="any", show_default=True, metavar="RULE",
    help="When a problem counts as solved: any, majority, or at-least-M of its samples. With a control only.",
)  # fmt: skip
@click.option("--force", is_flag=True, help="Compare runs that are not comparable; the page warns about it.")
@json_option
def report(
    run: str, control: str | None, store: str, out: Path | None, solved: str, force: bool, as_json: bool
) -> None:
    """Write a page on a run, or on a run against its control.

    It is a self-contained HTML file, with a PNG and a CSV of every figure and table. Works at any time: what is not
    computed yet is left out, and the page says so.

    With CONTROL it is RUN against its control: the paper's Table 1 and figures 1 to 6, with error bars. CONTROL is the
    run that `rloop run --arm vanilla-rl` made with RUN's config, or another RLoop run: an ablation. Runs that differ in
    anything but the method are refused. Matrices and curves over RL steps need explore.snapshot_every and
    evaluate.snapshots=true.

    \b
    Examples:
      rloop report demo --store .rloop/store --out demo-report
      rloop report demo demo-vanilla-rl
    """
    from rloop_core.results.page import write_report
    from rloop_core.store import Store

    options: dict[str, Any] = {"solved": solved, "force": force} if control else {}
    page, found = write_report(Store(store), [run, control] if control else [run], out, CACHE_FOLDER, **options)
    assert found is not None
    for reason in found.results.not_comparable:
        click.echo(f"forced: {reason}", err=True)
    files = sorted(str(path) for path in page.parent.iterdir())
    print_json({**found.to_dict(), "report": str(page), "files": files}) if as_json else click.echo(page)


@click.command("export")
@click.argument("run")
@click.option("--to", "target", required=True, metavar="PATH_OR_HUB", help="A folder, or hub:owner/name.")
@store_option
@click.option(
    "--iteration", type=click.IntRange(0), metavar="I",
    help="Export theta_(I+1), the policy at the end of iteration I.  [default: the last finished]",
)  # fmt: skip
@click.option("--best", is_flag=True, help="Export the best checkpoint on the set that evaluate.select_on names.")
@click.option(
    "--force", is_flag=True,
    help="Write into a folder that is not empty: an older model's files are removed and named, other files stay.",
)  # fmt: skip
@click.option("--public", is_flag=True, help="Make a new hub repository public; it is private otherwise.")
@json_option
def export(
    run: str, target: str, store: str, iteration: int | None, best: bool, force: bool, public: bool, as_json: bool
) -> None:
    """Write a run's policy with a model card, to a folder or the hub.

    Every file is checked against its digest; the card names base, config, metrics and lineage.

    \b
    Examples:
      rloop export demo --to ./theta
      rloop export demo --to ./theta --best
      rloop export demo --to hub:me/demo-rloop
    """
    from rloop_core.results.export import HUB_PREFIX, export_policy, policy_of, selected_policy, upload_policy
    from rloop_core.results.run_reader import read_run
    from rloop_core.results.selection import must_be_selected
    from rloop_core.store import Store

    record = read_run(Store(store), run, CACHE_FOLDER)
    chosen = must_be_selected(record) if best else None
    policy = selected_policy(record, chosen) if chosen else policy_of(record, iteration)
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
