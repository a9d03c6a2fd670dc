"""`rloop problems`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rloop_core.cli.options import COUNT, FILE, json_option, workers_option
from rloop_core.cli.output import check_outputs, console, plain_table, print_json, progress_bar, write_json_lines
from rloop_core.printable import printable_line

if TYPE_CHECKING:
    from rloop_core.problems import Problem, ProblemSet

_SHOWN = 10


@click.command("problems")
@click.argument("source", metavar="NAME_OR_FILE")
@click.option("--limit", type=COUNT, metavar="N", help="Keep the first N problems.")
@click.option("--split", help="Hub split.  [default: the usual one of the set]")
@click.option("--revision", help="Hub revision.  [default: the pinned one of a known set]")
@click.option("--subset", help="Hub configuration, such as en of dapo17k.")
@click.option("--size", type=COUNT, metavar="N", help="Problems to generate.")
@click.option("--seed", default=0, show_default=True, help="Seed of the generator.")
@click.option("--skip-malformed", is_flag=True, help="Skip and count bad rows instead of refusing the set.")
@workers_option
@click.option("--out", type=FILE, help="Write the clean set to this file.")
@json_option
def command(subset: str | None, workers: int, out: Path | None, as_json: bool, **fields: Any) -> None:
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

    check_outputs({"--out": out}, [("NAME_OR_FILE", fields["source"])])
    source = ProblemSource(**fields, params={"config": subset} if subset else {})
    with progress_bar(source.source, "rows") as show:
        problem_set = load_problems(source, show)
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
    from rich.text import Text

    screen = console()
    table = plain_table("count", "rows", right=("rows",), title=problem_set.name)
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
    for title, rows in (
        ("golds that contradict each other", conflicts),
        ("golds that do not verify against themselves", [(row.id, row.problem, row.gold) for row in refused]),
        ("problems held more than once", duplicates),
    ):
        listed = plain_table("", "", "", title=title)
        for identity, problem, what in rows[:_SHOWN]:
            listed.add_row(identity, Text(printable_line(problem, 68)), Text(printable_line(what, 68)))
        if rows:
            screen.print(listed)
        if len(rows) > _SHOWN:
            screen.print(f"... and {len(rows) - _SHOWN:,} more; --json lists them all")
    screen.print(Text(f"digest {problem_set.digest}"))
    if out:
        screen.print(Text(f"{len(problem_set) - len(refused):,} problems written to {out}"))


def _rows(count: int) -> str:
    return f"{count:,} row{'s' * (count != 1)}"
