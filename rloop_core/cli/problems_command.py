"""`rloop problems`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rloop_core.cli.options import json_option
from rloop_core.cli.output import console, print_json, progress_bar, short, write_json_lines

if TYPE_CHECKING:
    from rloop_core.problems import Problem, ProblemSet

_SHOWN = 10


@click.command("problems")
@click.argument("source", metavar="NAME_OR_FILE")
@click.option("--limit", type=click.IntRange(1), default=None, metavar="N", help="Keep the first N problems.")
@click.option("--split", default=None, help="Hub split.  [default: the usual one of the set]")
@click.option("--revision", default=None, help="Hub revision.  [default: the pinned one of a known set]")
@click.option("--subset", default=None, help="Hub configuration, such as en of dapo17k.")
@click.option("--size", type=click.IntRange(1), default=None, metavar="N", help="Problems to generate.")
@click.option("--seed", default=0, show_default=True, help="Seed of the generator.")
@click.option("--skip-malformed", is_flag=True, help="Skip and count bad rows instead of refusing the set.")
@click.option("--workers", default=1, show_default=True, help="Processes of the math engine; each can be killed.")
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), default=None, help="Write the clean set to this file."
)
@json_option
def command(
    source: str,
    limit: int | None,
    split: str | None,
    revision: str | None,
    subset: str | None,
    size: int | None,
    seed: int,
    skip_malformed: bool,
    workers: int,
    out: Path | None,
    as_json: bool,
) -> None:
    """Load a problem set and check it.

    Shows how many problems were read, kept and left out, which gold answers contradict each other, and which do not
    verify against themselves: no completion of such a problem could be judged correct. --out writes the other problems
    as JSON lines {id, problem, answer}, which rloop reads as a problem set. The tables show the first few of each list;
    --json shows all.

    \b
    Examples:
      rloop problems math500
      rloop problems BytedTsinghua-SIA/DAPO-Math-17k --out dapo.jsonl
    """
    from rloop_core.config import ProblemSource
    from rloop_core.problems import load_problems, self_check
    from rloop_core.verifier import Verifier

    problem_source = ProblemSource(
        source=source,
        limit=limit,
        split=split,
        revision=revision,
        size=size,
        seed=seed,
        skip_malformed=skip_malformed,
        params={"config": subset} if subset else {},
    )
    with progress_bar(source, "rows") as tell:
        problem_set = load_problems(problem_source, tell)
    with Verifier(workers=workers) as verifier:
        refused = self_check(problem_set, verifier)
    if out:
        ids = {problem.id for problem in refused}
        rows = ({"id": row.id, "problem": row.problem, "answer": row.gold} for row in problem_set if row.id not in ids)
        write_json_lines(out, rows, "--out")
    if as_json:
        print_json(_report(problem_set, refused, out))
    else:
        _show(problem_set, refused, out)


def _report(problem_set: ProblemSet, refused: list[Problem], out: Path | None) -> dict[str, Any]:
    return {
        "name": problem_set.name,
        "digest": problem_set.digest,
        "ledger": problem_set.ledger,
        "warnings": list(problem_set.warnings),
        "golds_refused": [{"id": problem.id, "problem": problem.problem, "gold": problem.gold} for problem in refused],
        "conflicts": [asdict(problem) for problem in problem_set.conflicts],
        "duplicates": [asdict(problem) for problem in problem_set.duplicates],
        "out": str(out) if out else None,
    }


def _show(problem_set: ProblemSet, refused: list[Problem], out: Path | None) -> None:
    from rich.table import Table
    from rich.text import Text

    screen = console()
    table = Table(title=Text(problem_set.name), title_justify="left", show_edge=False, pad_edge=False)
    table.add_column("count")
    table.add_column("", justify="right")
    for name, count in problem_set.ledger.items():
        table.add_row(name.replace("_", " "), f"{count:,}")
    table.add_row("golds that do not verify", f"{len(refused):,}")
    screen.print(table)
    for warning in problem_set.warnings:
        screen.print(Text(f"warning: {warning}"))
    conflicts = [
        (row.id, row.problem, ", ".join(f"{gold.gold} ({_rows(gold.rows)}, {gold.first})" for gold in row.variants))
        for row in problem_set.conflicts
    ]
    duplicates = [
        (row.id, row.problem, f"{_rows(sum(gold.rows for gold in row.variants))}, first {row.variants[0].first}")
        for row in problem_set.duplicates
    ]
    _list("golds that contradict each other", conflicts)
    _list("golds that do not verify against themselves", [(row.id, row.problem, row.gold) for row in refused])
    _list("problems held more than once", duplicates)
    screen.print(Text(f"digest {problem_set.digest}"))
    if out:
        screen.print(Text(f"{len(problem_set) - len(refused):,} problems written to {out}"))


def _list(title: str, rows: list[tuple[str, str, str]]) -> None:
    """Print the first few rows; nothing if there are none."""
    from rich.table import Table
    from rich.text import Text

    if not rows:
        return
    table = Table(title=Text(title), title_justify="left", show_edge=False, pad_edge=False, show_header=False)
    for identity, problem, what in rows[:_SHOWN]:
        table.add_row(identity, Text(short(problem, 70)), Text(short(what, 70)))
    console().print(table)
    if len(rows) > _SHOWN:
        console().print(f"... and {len(rows) - _SHOWN:,} more; --json lists them all")


def _rows(count: int) -> str:
    return f"{count:,} row{'s' * (count != 1)}"
