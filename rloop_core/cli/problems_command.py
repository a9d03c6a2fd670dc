"""`rloop problems`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rloop_core.cli.options import COUNT, FILE, json_option, workers_option
from rloop_core.cli.output import (
    check_outputs,
    console,
    is_replaceable,
    plain_table,
    print_json,
    progress_bar,
    write_json_lines,
)
from rloop_core.errors import ConfigError
from rloop_core.printable import printable_line
from rloop_core.problems.registry import PROCEDURAL_PREFIX

if TYPE_CHECKING:
    from rloop_core.problems import Problem, ProblemSet
    from rloop_core.problems.contamination import Match

_SHOWN = 10


class _ManyAgainst(click.Command):
    """A command that reads `--against A B` as `--against A --against B`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Repeat the option before each of its values."""
        option, spread = "", list[str]()
        for arg in args:
            if arg.startswith("-"):
                option = arg
            elif option == "--against" and spread[-1] != option:
                spread.append(option)
            spread.append(arg)
        return super().parse_args(ctx, spread)


@click.command("problems", cls=_ManyAgainst)
@click.argument("source", metavar="NAME_OR_FILE")
@click.option("--limit", type=COUNT, metavar="N", help="Keep the first N problems.")
@click.option("--split", help="Hub split.  [default: the usual one of the set]")
@click.option("--revision", help="Hub revision.  [default: the pinned one of a known set]")
@click.option("--subset", help="Hub configuration, such as en of dapo17k.")
@click.option("--size", type=COUNT, metavar="N", help="Problems to generate.")
@click.option("--seed", default=0, show_default=True, help="Seed of the generator.")
@click.option("--skip-malformed", is_flag=True, help="Skip and count bad rows instead of refusing the set.")
@click.option(
    "--against", multiple=True, metavar="NAME_OR_FILE...",
    help="Evaluation sets: find the problems that these hold too.",
)  # fmt: skip
@workers_option
@click.option("--out", type=FILE, help="Write the clean set to this file, and the pairs of --against beside it.")
@json_option
def command(
    subset: str | None, against: tuple[str, ...], workers: int, out: Path | None, as_json: bool, **fields: Any
) -> None:
    """Load a problem set and check it.

    Shows how many problems were read, kept and left out, which gold answers contradict each other, and which do not
    verify against themselves: no completion of such a problem could be judged correct. --out writes the other problems
    as JSON lines {id, problem, answer}, which rloop reads as a problem set. The tables show the first few of each list;
    --json shows all.

    With --against, a problem is contaminated if its words equal those of an evaluation problem, however they are
    typeset, or if both share 13 words in a row AND it has 60 % of the evaluation problem's word triples. Prompt
    templates are removed first. --out FILE.jsonl leaves the contaminated problems out, and writes the pairs to
    FILE.pairs.jsonl.

    \b
    Examples:
      rloop problems math500
      rloop problems BytedTsinghua-SIA/DAPO-Math-17k --out dapo.jsonl
      rloop problems train.jsonl --against aime24 math500 --out clean.jsonl
    """
    from rloop_core.config import ProblemSource
    from rloop_core.problems import load_problems, self_check
    from rloop_core.verifier import Verifier

    pairs = out.with_name(f"{out.name.removesuffix('.jsonl')}.pairs.jsonl") if out and against else None
    read = [("NAME_OR_FILE", fields["source"]), *(("--against", name) for name in against)]
    check_outputs({"--out": out, "--out, for the pairs,": pairs}, read)
    if pairs and out and not is_replaceable(out):
        what = f"{out} is no plain file, and the pairs are written beside it"
        raise ConfigError(what, field="--out", fix="name a file")
    source = ProblemSource(**fields, params={"config": subset} if subset else {})
    with progress_bar(source.source, "rows") as show:
        problem_set = load_problems(source, show)
    matches = _matches(source.source, problem_set, against) if against else []
    contaminated = {match.training_id for match in matches}
    with Verifier(workers=workers) as verifier:
        refused = self_check(problem_set, verifier)
    clean: list[Problem] = []
    if out:
        if pairs:
            write_json_lines(pairs, map(asdict, matches), "--out")
        ids = {problem.id for problem in refused}
        clean = [problem for problem in problem_set.without(contaminated) if problem.id not in ids]
        rows = ({"id": problem.id, "problem": problem.problem, "answer": problem.gold} for problem in clean)
        write_json_lines(out, rows, "--out")
    if as_json:
        print_json({
            "name": problem_set.name,
            "digest": problem_set.digest,
            "ledger": problem_set.ledger,
            "warnings": list(problem_set.warnings),
            "golds_refused": [{"id": row.id, "problem": row.problem, "gold": row.gold} for row in refused],
            "conflicts": [asdict(problem) for problem in problem_set.conflicts],
            "contaminated": len(contaminated),
            "pairs": [asdict(match) for match in matches],
            "out": str(out) if out else None,
        })  # fmt: skip
        return
    _show(problem_set, refused)
    if against:
        _show_matches(matches, against, len(problem_set))
    if out:
        written = f"{len(clean):,} problems written to {out}"
        console().print(f"{written}, pairs to {pairs}" if pairs else written, markup=False)


def _matches(name: str, problem_set: ProblemSet, against: tuple[str, ...]) -> list[Match]:
    """Compare the problems with evaluation sets; two generators' problems differ in their numbers only."""
    from rloop_core.config import ProblemSource
    from rloop_core.problems import load_problems
    from rloop_core.problems.contamination import EvaluationSet, find_matches

    generated = name.startswith(PROCEDURAL_PREFIX)
    with progress_bar("comparing", "problems") as show:
        sets = [
            EvaluationSet(
                each,
                load_problems(ProblemSource(source=each, params={})),
                generated and each.startswith(PROCEDURAL_PREFIX),
            )
            for each in dict.fromkeys(against)
        ]
        return find_matches(problem_set, sets, show)


def _show(problem_set: ProblemSet, refused: list[Problem]) -> None:
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
        (row.id, row.problem, ", ".join(f"{gold} ({place})" for gold, place in row.golds.items()))
        for row in problem_set.conflicts
    ]
    for title, rows in (
        ("golds that contradict each other", conflicts),
        ("golds that do not verify against themselves", [(row.id, row.problem, row.gold) for row in refused]),
    ):
        listed = plain_table("", "", "", title=title)
        for identity, problem, what in rows[:_SHOWN]:
            listed.add_row(identity, Text(printable_line(problem, 68)), Text(printable_line(what, 68)))
        if rows:
            screen.print(listed)
        if len(rows) > _SHOWN:
            screen.print(f"... and {len(rows) - _SHOWN:,} more; --json lists them all")
    screen.print(Text(f"digest {problem_set.digest}"))


def _show_matches(matches: list[Match], against: tuple[str, ...], problems: int) -> None:
    from rich.text import Text

    screen = console()
    for match in sorted(matches, key=lambda match: -match.containment)[:_SHOWN]:
        differing = "" if match.same_numbers else ", other numbers"
        share = f"{match.kind}, {match.containment:.0%} of {match.evaluation_set} {match.evaluation_id}{differing}"
        texts = "".join(f"\n  {printable_line(text, 110)}" for text in (match.training, match.evaluation))
        screen.print(Text(f"{match.training_id}  {share}{texts}"))
    if len(matches) > _SHOWN:
        screen.print(f"... and {len(matches) - _SHOWN:,} more pairs; --json and --out list them all")
    by_set = {name: {match.training_id for match in matches if match.evaluation_set == name} for name in against}
    counts = ", ".join(f"{name} ({len(ids):,})" for name, ids in by_set.items())
    total = len({match.training_id for match in matches}) or "none"
    screen.print(Text(f"{total} of {problems:,} problems contaminated by {counts}"))
