"""Tables of numbers as CSV and Markdown, and how reports write numbers."""

from __future__ import annotations

import csv
import html
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Table:
    """Numbers with column names."""

    name: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]

    def to_csv(self) -> str:
        """Return RFC 4180 text, None as an empty cell."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows(self.rows)
        return text.getvalue()


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: bool = False) -> str:
    """Return a Markdown table of cells that are Markdown already; `numbers` right-aligns all columns but the first."""
    rule = ["---", *["---:" if numbers else "---"] * (len(columns) - 1)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (columns, rule, *rows))


def markdown_text(value: str) -> str:
    """Escape free text for Markdown and HTML, on one line."""
    return re.sub(r"([\\`*_{}\[\]()#+!|~-])", r"\\\1", html.escape(" ".join(value.split()), quote=False))


def markdown_code(value: str) -> str:
    """Return text in a code element that it cannot leave."""
    escaped = html.escape(" ".join(value.split()))
    for sign in "|`*_[]~":
        escaped = escaped.replace(sign, f"&#{ord(sign)};")
    return f"<code>{escaped}</code>"


def percent_interval(metric: Mapping[str, float], sign: str = "") -> str:
    """Return "31.2 [9.4, 53.1]", in percent; with `+` as `sign` for differences."""
    value, low, high = (f"{100 * metric[name]:{sign}.1f}" for name in ("value", "low", "high"))
    return f"{value} [{low}, {high}]"


def share(value: float | None) -> str:
    """Return 0.1234 as "12.3"; percent by context."""
    return "" if value is None else f"{100 * value:.1f}"


def points(value: float | None) -> str:
    """Return a signed difference in percentage points."""
    return "" if value is None else f"{100 * value:+.1f}".replace("-", "\N{MINUS SIGN}")


def duration(value: float) -> str:
    """Return seconds as "8.1 s", "35 min" or "2.5 h"."""
    if value < 120:
        return f"{value:.0f} s" if value >= 10 else f"{value:.1f} s"
    return f"{value / 60:.0f} min" if value < 7200 else f"{value / 3600:.1f} h"


def size(value: float) -> str:
    """Return bytes as "8.1 kB"."""
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.2f} TB"
