"""Completions from a file, and a summary of their scores on the screen."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rloop_core.cli.options import console
from rloop_core.errors import ProblemsError

_USUAL_KS = (1, 8, 16, 32)


@dataclass(frozen=True, slots=True)
class Row:
    """One completion to score."""

    problem_id: str
    completion: str
    answer: Any
    finished: bool


def default_ks(samples: int) -> tuple[int, ...]:
    """The usual k that this many samples a problem allow."""
    return tuple(k for k in _USUAL_KS if k <= samples)


def read_completions(source: str, skip_malformed: bool) -> tuple[list[Row], int]:
    """The rows of a JSON-lines file (`-`: stdin), and how many lines were skipped.

    Raises:
        ProblemsError: No such file, a malformed line (named by its number) that may not be skipped, or no rows.
    """
    rows, skipped = [], 0
    for number, line in enumerate(_lines(source), start=1):
        if not line.strip():
            continue
        try:
            rows.append(_row(line))
        except ValueError as error:
            if not skip_malformed:
                fix = "correct it, or pass --skip-malformed to skip and count such lines"
                raise ProblemsError(f"line {number} {error}", field=source, fix=fix) from None
            skipped += 1
    if not rows:
        raise ProblemsError(
            f"holds no completions ({skipped} lines skipped)", field=source, fix="give at least one line"
        )
    return rows, skipped


def _lines(source: str) -> Iterator[bytes]:
    if source == "-":
        yield from sys.stdin.buffer
        return
    try:
        with open(Path(source).expanduser(), "rb") as stream:
            yield from stream
    except OSError as error:
        reason = error.strerror or str(error)
        raise ProblemsError(f"cannot be read: {reason}", field=source, fix="name a JSON-lines file") from error


def _row(line: bytes) -> Row:
    try:
        content = json.loads(line.decode("utf-8", errors="replace"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is not valid JSON ({str(error)[:120]})") from None
    if not isinstance(content, dict):
        raise ValueError("is not a JSON object")
    missing = [name for name in ("problem_id", "completion", "answer") if content.get(name) is None]
    if missing:
        raise ValueError(f"lacks {', '.join(missing)}")
    if not isinstance(content["completion"], str):
        raise ValueError("has a completion that is not text")
    finished = content.get("finished", True)
    if not isinstance(finished, bool):
        raise ValueError("has a `finished` that is neither true nor false")
    return Row(str(content["problem_id"]), content["completion"], content["answer"], finished)


def show_summary(title: str, summary: dict[str, Any]) -> None:
    """A small table: each metric with its interval, and what it rests on."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(title), title_justify="left", show_edge=False, pad_edge=False)
    table.add_column("metric")
    table.add_column("value", justify="right")
    table.add_column("95 % interval", justify="right")
    for name, value in summary.items():
        if isinstance(value, dict) and "low" in value:
            table.add_row(name, f"{value['value']:.2%}", f"{value['low']:.2%} to {value['high']:.2%}")
    out = console()
    out.print(table)
    facts = [
        f"{summary['problems']:,} problems",
        f"{summary['samples']:,} samples",
        f"{summary['truncated']:.1%} truncated",
    ]
    if summary.get("mean_length"):
        facts.append(f"{summary['mean_length']:,.0f} tokens a sample")
    if summary.get("sampling_sd") is not None:
        facts.append(f"sampling sd of avg {summary['sampling_sd']:.2%}")
    if summary.get("malformed_skipped"):
        facts.append(f"{summary['malformed_skipped']:,} malformed lines skipped")
    out.print(", ".join(facts))
    if verdicts := summary.get("verdicts"):
        out.print("verdicts: " + ", ".join(f"{name} {count:,}" for name, count in sorted(verdicts.items())))
