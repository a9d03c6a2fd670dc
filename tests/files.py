"""Files that tests read and write."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq


def rows_of(*places: Path) -> list[dict[str, Any]]:
    """The rows of parquet files, and of all below folders in the order of their names."""
    files = [file for place in places for file in (sorted(place.rglob("*.parquet")) if place.is_dir() else [place])]
    return [row for file in files for row in pq.read_table(file).to_pylist()]


def write_rows(path: Path, rows: Iterable[Any]) -> Path:
    """Write rows as JSON lines, and return the path."""
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def csv_rows(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file with a header."""
    with open(path, encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))
