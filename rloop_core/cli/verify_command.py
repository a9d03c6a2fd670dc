"""`rloop verify`."""

from __future__ import annotations

import sys
from collections import Counter
from io import BufferedIOBase
from pathlib import Path
from typing import cast

import click

from rloop_core.cli.interrupt import INTERRUPTED
from rloop_core.cli.options import FILE, seconds, workers_option
from rloop_core.cli.output import check_outputs, progress_bar
from rloop_core.cli.policy_option import policy_option
from rloop_core.verifier.policies import Policies


@click.command("verify")
@click.option(
    "--input", "source", type=click.Path(exists=True, dir_okay=False, allow_dash=True), default="-",
    help="Read this file.  [default: stdin]",
)  # fmt: skip
@click.option("--output", "target", type=FILE, default="-", help="Write this file.  [default: stdout]")
@workers_option
@click.option(
    "--timeout", default=5.0, type=seconds, show_default=True, metavar="SECONDS",
    help="Seconds of processor time for one answer; beyond them its verdict is `timeout`.",
)  # fmt: skip
@click.option("--memory-mb", default=1024, show_default=True, help="Memory of each such process, in MiB.")
@policy_option
def command(source: str, target: Path, workers: int, timeout: float, memory_mb: int, policies: Policies) -> None:
    """Judge completions against gold answers.

    Reads JSON lines {id, completion, answer} on stdin (optionally `finished: false` for a completion that was cut off)
    and writes a line {id, correct, verdict, extracted} for each on stdout, in order, as soon as the input pauses. A
    line that cannot be judged gets the verdict `error` with a reason, and the stream continues.

    \b
    Example:
      echo '{"id": 1, "completion": "so \\\\boxed{1/2}", "answer": "0.5"}' | rloop verify
      {"id": 1, "correct": true, "verdict": "correct", "extracted": "1/2"}
    """
    from rloop_core.verifier import Verifier
    from rloop_core.verifier.stream import encode_row, read_batches, verify_batch

    check_outputs({"--output": target}, [("--input", source)], temporary="")
    counts = Counter[str]()
    try:
        with (
            click.open_file(source, "rb") as lines,
            click.open_file(str(target), "wb", lazy=True) as output,
            Verifier(workers, timeout, memory_mb, policies) as verifier,
            progress_bar("verify", "lines") as show,
        ):
            for batch in read_batches(cast("BufferedIOBase", lines)):
                rows = verify_batch(batch, verifier)
                counts.update(row["verdict"] for row in rows)
                output.write(b"".join(map(encode_row, rows)))
                output.flush()
                show(counts.total())
    except KeyboardInterrupt:
        click.echo(f"rloop: interrupted; lines judged: {counts.total():,}", err=True)
        sys.exit(INTERRUPTED)
    if sys.stderr.isatty():
        click.echo(", ".join(f"{name} {count:,}" for name, count in sorted(counts.items())) or "no lines", err=True)
