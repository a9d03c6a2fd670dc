"""`rloop verify`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator

import click


@click.command("verify")
@click.option("--workers", default=1, show_default=True, help="Killable processes of the math engine.")
@click.option(
    "--timeout", default=5.0, show_default=True, help="Seconds for one answer; then its verdict is `timeout`."
)
@click.option("--memory-mb", default=1024, show_default=True, help="Memory of one such process, in MiB.")
def command(workers: int, timeout: float, memory_mb: int) -> None:
    """Judge completions against gold answers.

    Reads JSON lines {id, completion, answer} on stdin (optionally `finished: false` for a completion that was cut), and
    writes {id, correct, verdict, extracted} on stdout, in order, one for each line. A line that cannot be judged gets
    the verdict `error` with a reason; nothing stops the stream.

    \b
    Example:
      echo '{"id": 1, "completion": "so \\\\boxed{1/2}", "answer": "0.5"}' | rloop verify
      {"id": 1, "correct": true, "verdict": "correct", "extracted": "1/2"}
    """
    from rloop_core.verifier import Verifier, verify_stream

    out = sys.stdout
    counts: dict[str, int] = {}
    with Verifier(workers=workers, timeout=timeout, memory_mb=memory_mb) as verifier:
        for row in verify_stream(_watched(sys.stdin.buffer), verifier):
            out.write(json.dumps(row, ensure_ascii=False) + "\n")
            counts[row["verdict"]] = counts.get(row["verdict"], 0) + 1
    if sys.stderr.isatty():
        click.echo(", ".join(f"{name} {count}" for name, count in sorted(counts.items())) or "no lines", err=True)


def _watched(lines: Iterable[bytes]) -> Iterator[bytes]:
    """The lines, counted on stderr when somebody watches."""
    if not sys.stderr.isatty():
        yield from lines
        return
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from rloop_core.cli.options import console

    columns = (SpinnerColumn(), TextColumn("{task.completed:,.0f} lines"), TimeElapsedColumn())
    # Only stderr may be redrawn: stdout carries the verdicts.
    with Progress(*columns, console=console(stderr=True), redirect_stdout=False, transient=True) as progress:
        task = progress.add_task("verify", total=None)
        for line in lines:
            progress.advance(task)
            yield line
