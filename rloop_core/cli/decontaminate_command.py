"""`rloop decontaminate`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rloop_core.cli.options import FILE, json_option
from rloop_core.cli.output import check_outputs, console, plain_table, print_json, progress_bar, write_json_lines
from rloop_core.printable import printable_line
from rloop_core.problems.registry import KNOWN_SETS

if TYPE_CHECKING:
    from rloop_core.problems.decontamination import Decontamination

_SHOWN = 10


@click.command("decontaminate")
@click.option("--problems", "training", required=True, metavar="NAME_OR_FILE", help="The training problems.")
@click.option(
    "--against", multiple=True, required=True, metavar="NAME_OR_FILE",
    help=f"An evaluation set: {KNOWN_SETS} or a file; may be repeated.",
)  # fmt: skip
@click.option(
    "--ngram", default=13, show_default=True, type=click.IntRange(3, 100), help="Words in a row that both must have."
)
@click.option(
    "--containment", default=0.6, show_default=True, type=click.FloatRange(0, 1, min_open=True),
    help="Least share of the evaluation problem's word triples that the training problem must have too.",
)  # fmt: skip
@click.option(
    "--out", type=FILE, metavar="FILE",
    help="Write all pairs of problems to this file, near misses included: JSON lines, one a pair.",
)  # fmt: skip
@click.option(
    "--clean", type=FILE, metavar="FILE",
    help="Write the training problems without the contaminated ones to this file: JSON lines {id, problem, answer}.",
)  # fmt: skip
@json_option
def command(
    training: str,
    against: tuple[str, ...],
    ngram: int,
    containment: float,
    out: Path | None,
    clean: Path | None,
    as_json: bool,
) -> None:
    """Find training problems that are also in an evaluation set.

    A training problem is contaminated if its words equal those of an evaluation problem, however they are typeset, or
    if both share --ngram words in a row AND the training problem has --containment of the evaluation problem's word
    triples. Prompt templates and boilerplate ("where m and n are relatively prime positive integers. Find m+n.") are
    removed first. A near miss shares the words in a row, but fewer triples: it is kept, and listed.

    `rloop run` does the same before it trains; see `decontaminate` in its config.

    \b
    Examples:
      rloop decontaminate --problems dapo17k --against aime24 --against math500 --out pairs.jsonl
      rloop decontaminate --problems train.jsonl --against test.jsonl --clean train-clean.jsonl
    """
    from rloop_core.config import ProblemSource
    from rloop_core.errors import ConfigError
    from rloop_core.files import file_identity
    from rloop_core.problems import load_problems
    from rloop_core.problems.decontamination import EvaluationSet, Rules, decontaminate
    from rloop_core.problems.registry import PROCEDURAL_PREFIX

    if len({file_identity(Path(name).expanduser()) for name in against}) < len(against):
        raise ConfigError("a set is named twice", field="--against", fix="name each set once")
    check_outputs(
        {"--out": out, "--clean": clean}, [("--problems", training), *(("--against", name) for name in against)]
    )
    generated = training.startswith(PROCEDURAL_PREFIX)
    with progress_bar("comparing", "problems") as show:
        problems, *loaded = [load_problems(ProblemSource(source=name, params={})) for name in (training, *against)]
        sets = [
            EvaluationSet(name, problem_set, generated and name.startswith(PROCEDURAL_PREFIX))
            for name, problem_set in zip(against, loaded, strict=True)
        ]
        result = decontaminate(problems, sets, Rules(ngram, containment), show)
    if out:
        write_json_lines(out, (asdict(match) for match in result.matches), "--out")
    if clean:
        rows = ({"id": row.id, "problem": row.problem, "answer": row.gold} for row in result.clean(problems))
        write_json_lines(clean, rows, "--clean")
    if as_json:
        counts = {"contaminated": len(result.contaminated), "near_misses": result.near_misses}
        print_json({**counts, "by_set": result.by_set(), **result.to_dict(), "out": out, "clean": clean})
    else:
        _show(result, out, clean)


def _show(result: Decontamination, out: Path | None, clean: Path | None) -> None:
    from rich.text import Text

    screen = console()
    numbers = ("problems", "in training", "training problems")
    table = plain_table("evaluation set", *numbers, right=numbers)
    for label, counts in result.by_set().items():
        table.add_row(Text(label), *(f"{counts[name]:,}" for name in ("problems", "evaluation", "training")))
    screen.print(table)
    matches = sorted(result.matches, key=lambda match: (not match.contaminated, -match.containment))
    for match in matches[:_SHOWN]:
        differing = "" if match.same_numbers else ", other numbers"
        share = f"{match.kind}, {match.containment:.0%} of {match.evaluation_set} {match.evaluation_id}{differing}"
        texts = "".join(f"\n  {printable_line(text, 110)}" for text in (match.training, match.evaluation))
        screen.print(Text(f"{match.training_id}  {share}{texts}"))
    if len(matches) > _SHOWN:
        screen.print(f"... and {len(matches) - _SHOWN:,} more pairs; --out writes them all")
    screen.print(Text(f"{result.sentence()}; {result.near_misses:,} near misses are kept"))
    for path, what in ((out, "pairs"), (clean, "clean training problems")):
        if path:
            screen.print(Text(f"{what}: {path}"))
