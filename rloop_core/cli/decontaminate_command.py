"""`rloop decontaminate`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rloop_core.cli.options import console, json_option, print_json
from rloop_core.problems.registry import KNOWN_SETS

if TYPE_CHECKING:
    from rloop_core.problems.decontamination import Decontamination

_SHOWN = 10


@click.command("decontaminate")
@click.option("--problems", "training", required=True, metavar="NAME_OR_FILE", help="The training problems.")
@click.option(
    "--against",
    multiple=True,
    required=True,
    metavar="NAME_OR_FILE",
    help=f"An evaluation set: {KNOWN_SETS} or a file; may be repeated.",
)
@click.option(
    "--ngram", default=13, show_default=True, type=click.IntRange(3, 100), help="Words in a row that both must have."
)
@click.option(
    "--containment",
    default=0.6,
    show_default=True,
    type=click.FloatRange(0, 1, min_open=True),
    help="Least share of the evaluation problem's runs of three words in the training problem.",
)
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    default=None,
    metavar="FILE",
    help="Write the ledger here: JSON lines, a pair of problems each, near misses too.",
)
@click.option(
    "--clean",
    type=click.Path(dir_okay=False, path_type=Path),
    default=None,
    metavar="FILE",
    help="Write the training problems that are left here: JSON lines {id, problem, answer}.",
)
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
    """Find the training problems that an evaluation set holds too.

    Two problems count as one when their words are equal, however they are typeset, or when they share --ngram words in
    a row AND the training problem has --containment of the evaluation problem's runs of three words. Prompt templates
    and boilerplate ("where m and n are relatively prime positive integers. Find m+n.") are left out first. A near miss
    shares the words in a row, but less of the rest: it is kept, and listed.

    `rloop run` does the same before it trains; see `decontaminate` in its config.

    \b
    Examples:
      rloop decontaminate --problems dapo17k --against aime24 --against math500 --out ledger.jsonl
      rloop decontaminate --problems train.jsonl --against test.jsonl --clean train-clean.jsonl
    """
    from rloop_core.config import ProblemSource
    from rloop_core.errors import ConfigError
    from rloop_core.problems import load_problems
    from rloop_core.problems.decontamination import EvaluationSet, Rules, decontaminate
    from rloop_core.problems.registry import PROCEDURAL_PREFIX

    if len(set(against)) < len(against):
        raise ConfigError("a set is named twice", field="--against", fix="name each set once")
    generated = training.startswith(PROCEDURAL_PREFIX)
    with _progress() as tell:
        problems = load_problems(ProblemSource(source=training, params={}))
        sets = [
            EvaluationSet(
                name,
                load_problems(ProblemSource(source=name, params={})),
                generated and name.startswith(PROCEDURAL_PREFIX),
            )
            for name in against
        ]
        found = decontaminate(problems, sets, Rules(ngram, containment), tell)
    if out:
        _write(out, (asdict(match) for match in found.matches), "--out")
    if clean:
        rows = ({"id": one.id, "problem": one.problem, "answer": one.gold} for one in found.clean(problems))
        _write(clean, rows, "--clean")
    if as_json:
        summary = {"contaminated": len(found.contaminated), "near_misses": found.near_misses, "by_set": found.by_set()}
        print_json({**summary, **found.to_dict(), "out": out, "clean": clean})
    else:
        _show(found, out, clean)


def _show(found: Decontamination, out: Path | None, clean: Path | None) -> None:
    from rich.table import Table
    from rich.text import Text

    screen = console()
    table = Table(show_edge=False, pad_edge=False)
    table.add_column("evaluation set", overflow="fold")
    for title in ("problems", "in training", "training problems"):
        table.add_column(title, justify="right")
    for label, one in found.by_set().items():
        table.add_row(Text(label), f"{one['problems']:,}", f"{one['evaluation']:,}", f"{one['training']:,}")
    screen.print(table)
    matches = sorted(found.matches, key=lambda match: (not match.contaminated, -match.containment))
    for match in matches[:_SHOWN]:
        numbers = "" if match.same_numbers else ", other numbers"
        share = f"{match.kind}, {match.containment:.0%} of {match.evaluation_set} {match.evaluation_id}{numbers}"
        screen.print(Text(f"{match.training_id}  {share}\n  {_short(match.training)}\n  {_short(match.evaluation)}"))
    if len(matches) > _SHOWN:
        screen.print(f"... and {len(matches) - _SHOWN:,} more pairs; --out writes them all")
    screen.print(Text(f"{found.sentence()}; {found.near_misses:,} near misses are kept"))
    for path, what in ((out, "ledger"), (clean, "clean training problems")):
        if path:
            screen.print(Text(f"{what}: {path}"))


def _short(text: str, length: int = 110) -> str:
    return text if len(text) <= length else text[: length - 3] + "..."


def _write(path: Path, rows: Iterable[Mapping[str, Any]], option: str) -> None:
    """Rows as JSON lines, the whole file or none.

    Raises:
        ConfigError: The file cannot be written.
    """
    from rloop_core.errors import ConfigError
    from rloop_core.files import replace_text

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_text(path, "".join(f"{json.dumps(row)}\n" for row in rows))
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(f"{path} cannot be written: {reason}", field=option, fix="name another file") from error


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr when somebody watches."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("problems"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console(stderr=True), redirect_stdout=False, transient=True) as progress:
        task = progress.add_task("loading", total=None)
        yield lambda done, total: progress.update(task, description="comparing", completed=done, total=total)
