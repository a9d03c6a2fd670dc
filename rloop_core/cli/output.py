"""Output that several commands share: JSON, tables, progress bars, files."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from rloop_core.printable import visible, without_controls


def print_json(value: Any) -> None:
    """Print one JSON object on stdout."""
    click.echo(visible(json.dumps(value, indent=1, ensure_ascii=False, default=str)))


def console(stderr: bool = False) -> Any:
    """Return a rich console that drops control characters and never cuts a table in a pipe."""
    from rich.console import Console
    from rich.segment import Segment

    class Plain(Console):
        def render(self, renderable: Any, options: Any = None) -> Any:
            for segment in super().render(renderable, options):
                yield segment if segment.control else Segment(without_controls(segment.text), segment.style)

    terminal = (sys.stderr if stderr else sys.stdout).isatty()
    return Plain(stderr=stderr, width=None if terminal else 160, highlight=False, soft_wrap=not terminal)


@contextmanager
def progress_bar(description: str, unit: str) -> Iterator[Callable[..., None]]:
    """Yield a function that moves a bar on stderr; it does nothing where stderr is no terminal.

    The function takes the amount done, the total (None: unknown), and optionally a text in place of "3 of 20 <unit>".
    """
    if not sys.stderr.isatty():
        yield lambda done, total=None, text=None: None
        return
    from rich.markup import escape

    # Stdout may carry the results, so only stderr is redrawn.
    with bars(console(stderr=True), redirect_stdout=False) as progress:
        task = progress.add_task(escape(description), total=None, text="")

        def show(done: int, total: int | None = None, text: str | None = None) -> None:
            amount = text or f"{done:,}{f' of {total:,}' if total else ''} {unit}"
            progress.update(task, completed=done, total=total, text=amount)

        yield show


def bars(screen: Any, **options: Any) -> Any:
    """Return a rich `Progress` that disappears at its end; each of its tasks has a field `text`."""
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description:<17}"),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[text]}"),
        TimeElapsedColumn(),
        TextColumn("[dim]left"),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=screen, transient=True, **options)


def check_outputs(
    outputs: Mapping[str, Path | None], inputs: Iterable[tuple[str, str]], temporary: str = ".tmp"
) -> None:
    """Check, before any work, that no output is written over an input or over another output.

    Args:
        outputs: Path by option; - is stdout, and None writes nothing. Devices and pipes may take several outputs.
        inputs: Options with the files or sets that the command reads; - is stdin.
        temporary: End of the name under which an output is written first, as `write_json_lines` does.

    Raises:
        ConfigError: Two paths lead to one file, however they are spelled; it names the option of the output.
    """
    from rloop_core.errors import ConfigError
    from rloop_core.files import file_identity

    taken: dict[object, str] = {}
    for option, source in inputs:
        taken[file_identity(Path("/dev/stdin" if source == "-" else source).expanduser())] = f"{option} reads"
    for option, target in outputs.items():
        path = Path("/dev/stdout") if str(target) == "-" else target
        if path is None or (path.exists() and not path.is_file()):
            continue
        places = {file_identity(name): name for name in (Path(f"{path}{temporary}"), path)}
        for identity, name in places.items():
            if identity in taken:
                raise ConfigError(f"{name} is the file that {taken[identity]}", field=option, fix="name another file")
        taken |= dict.fromkeys(places, f"{option} writes")


def is_replaceable(path: Path) -> bool:
    """Return True if a path is a plain file or nothing yet, False for a device, pipe or symbolic link."""
    return not path.exists() or (path.is_file() and not path.is_symlink())


def write_json_lines(path: Path, rows: Iterable[Mapping[str, Any]], option: str) -> None:
    """Write rows as JSON lines: a file whole or not at all; a device, pipe or link, as /dev/stdout is, is not replaced.

    Raises:
        ConfigError: The file cannot be written; it names the option that gave the path.
    """
    from rloop_core.errors import ConfigError
    from rloop_core.files import replace_text

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        text = "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)
        text = text.encode(errors="backslashreplace").decode()  # lone surrogates become JSON escapes
        if is_replaceable(path):
            replace_text(path, text)
        else:
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(f"{path} cannot be written: {reason}", field=option, fix="name another file") from error


def plain_table(*columns: str, right: Iterable[str] = (), title: str = "") -> Any:
    """Return a rich table without lines; the columns in `right` are aligned to the right."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), title_justify="left", show_header=any(columns))
    table.title = Text(title) if title else None
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return table


def show_metrics(title: str, summary: Mapping[str, Any]) -> None:
    """Print a table of an evaluation's metrics with their intervals, and the counts behind them."""
    from rloop_core.evaluation.metrics import metrics_of

    table = plain_table("metric", "value", "95 % interval", right=("value", "95 % interval"), title=title)
    for name, value in metrics_of(summary).items():
        table.add_row(name, f"{value['value']:.2%}", f"{value['low']:.2%} to {value['high']:.2%}")
    facts = [f"{summary[name]:,} {name}" for name in ("problems", "samples")]
    facts.append(f"{summary['truncated']:.1%} truncated")
    if summary.get("mean_length"):
        facts.append(f"{summary['mean_length']:,.0f} tokens a sample")
    if summary.get("sampling_sd") is not None:
        facts.append(f"sampling sd of avg {summary['sampling_sd']:.2%}")
    if summary.get("malformed_skipped"):
        facts.append(f"{summary['malformed_skipped']:,} malformed lines skipped")
    out = console()
    out.print(table)
    out.print(", ".join(facts))
    if verdicts := summary.get("verdicts"):
        out.print("verdicts: " + ", ".join(f"{name} {count:,}" for name, count in sorted(verdicts.items())))
