"""`rloop compare`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from rloop_core.cli.options import CACHE_FOLDER, FOLDER, json_option, store_option
from rloop_core.cli.output import print_json

if TYPE_CHECKING:
    from rloop_core.results.compare.transitions import Unit


@click.command("compare")
@click.argument("run")
@click.argument("vanilla")
@store_option
@click.option(
    "--out", type=FOLDER,
    help="Folder of the page.  [default: <store>/RUN/compare-VANILLA, else .rloop/reports/RUN+VANILLA]",
)  # fmt: skip
@click.option(
    "--solved", default="any", show_default=True, metavar="RULE",
    help="When a problem counts as solved: any, majority, or at-least-M of its samples.",
)  # fmt: skip
@click.option(
    "--similarity-unit", type=click.Choice(["words", "tokens"]), default="words", show_default=True,
    help="What the similarity of two trajectories counts pairs of: words of the text, or token ids as sampled.",
)  # fmt: skip
@click.option("--seed", type=click.IntRange(0), help="Seed of the bootstrap.  [default: RUN's]")
@click.option("--force", is_flag=True, help="Compare arms that are not comparable; the page warns about it.")
@json_option
def command(
    run: str,
    vanilla: str,
    store: str,
    out: Path | None,
    solved: str,
    similarity_unit: Unit,
    seed: int | None,
    force: bool,
    as_json: bool,
) -> None:
    """Compare an RLoop run with its control: the paper's Table 1 and figures, with error bars, on one HTML page.

    VANILLA is the run that `rloop run --arm vanilla-rl` made with RUN's config, or another RLoop run: an ablation.
    Arms that differ in anything but the method are refused. Matrices and curves over RL steps need
    explore.snapshot_every and evaluate.snapshots=true; the page leaves out what is missing, and says so.

    \b
    Example:
      rloop compare demo demo-vanilla-rl --store .rloop/store
    """
    from rloop_core.results.compare.comparison import compare_runs
    from rloop_core.results.compare.page import write_comparison
    from rloop_core.store import Store

    comparison = compare_runs(
        Store(store), run, vanilla, CACHE_FOLDER,
        solved=solved, similarity_unit=similarity_unit, seed=seed, force=force,
    )  # fmt: skip
    page = write_comparison(comparison, out)
    for reason in comparison.not_comparable:
        click.echo(f"forced: {reason}", err=True)
    if as_json:
        print_json(
            {
                "comparison": str(page),
                "files": sorted(str(path) for path in page.parent.iterdir()),
                "not_comparable": comparison.not_comparable,
                "compute": comparison.equality,
                "notes": comparison.notes,
                "table": comparison.table.to_table().to_dicts(),
            }
        )
    else:
        for note in comparison.notes:
            click.echo(f"note: {note}", err=True)
        click.echo(page)
