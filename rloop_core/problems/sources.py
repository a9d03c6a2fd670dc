"""Raw rows of files, each with the name by which an error refers to it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rloop_core.errors import ProblemsError
from rloop_core.json_text import parse_json

Row = tuple[str, Any]
"""(place, row); place is "line 12", "row 12" or "entry 12", counted from 1."""
FILE_SUFFIXES = (".jsonl", ".ndjson", ".json", ".parquet")
_PARQUET_BATCH = 1024
_BATCH_BYTES = 2**29
_MOST_PACKED = 1000
_MOST_ENTRIES = 1000
_MOST_JSON_BYTES = 2**30
_MOST_LINE_BYTES = 64 * 2**20


class MalformedLineError(ValueError):
    """A line that is not JSON; takes the place of its row, so that the reader decides whether to skip it."""


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a source, to be read once.

    Attributes:
        rows: The rows in order.
        total: How many there will be, where that is known beforehand.
        warnings: What a user should know of the source.
        digest: `ProblemSet.digest` that the whole set had when it was pinned, where that is known.
    """

    rows: Iterator[Row]
    total: int | None = None
    warnings: tuple[str, ...] = ()
    digest: str | None = None


def file_rows(path: str, columns: Sequence[str] = ()) -> Rows:
    """Rows of a JSONL, JSON-array or parquet file, streamed. A line that is not JSON comes as a MalformedLineError.

    Args:
        path: The file.
        columns: Columns wanted, dotted ones for nested fields; of a parquet file no others are read.

    Raises:
        ProblemsError: The file is missing, unreadable, or not what its name says; when it is read at the latest.
    """
    local = Path(path).expanduser()
    if not local.is_file():
        what = "is a folder, not a file" if local.is_dir() else "no such file"
        raise ProblemsError(f"{what}: {path}", field="source", fix="give the path of a JSONL or parquet file")
    if local.suffix == ".parquet":
        return _parquet(local, columns)
    return Rows(_explained(_json_rows(local) if local.suffix == ".json" else _jsonl_rows(local), path))


def _explained(rows: Iterator[Row], path: str) -> Iterator[Row]:
    try:
        yield from rows
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: str, error: OSError) -> ProblemsError:
    what = f"cannot read {path}: {error.strerror or error}"
    return ProblemsError(what, field="source", fix="check its permissions")


def _jsonl_rows(path: Path) -> Iterator[Row]:
    with path.open("rb") as lines:
        for number, line in enumerate(iter(lambda: lines.readline(_MOST_LINE_BYTES + 1), b""), start=1):
            if len(line) > _MOST_LINE_BYTES:
                fix = "write one JSON object a line"
                raise ProblemsError(f"{path}: line {number} is longer than 64 MiB", field="source", fix=fix)
            if line.strip():
                yield f"line {number}", _parsed(line)


def _parsed(line: bytes) -> Any:
    try:
        return parse_json(line)
    except ValueError as error:
        return MalformedLineError(f"is not valid JSON ({str(error)[:120]})")


def _json_rows(path: Path) -> Iterator[Row]:
    if path.stat().st_size > _MOST_JSON_BYTES:
        what = f"{path} is larger than {_MOST_JSON_BYTES // 2**30} GiB, and must be read whole"
        raise ProblemsError(what, field="source", fix="write it as JSON lines, named .jsonl")
    rows = _parsed(path.read_bytes())
    if not isinstance(rows, list):  # JSON lines under another name, or a broken file: the lines tell
        yield from _jsonl_rows(path)
        return
    for number, row in enumerate(rows, start=1):
        yield f"entry {number}", row


def _parquet(path: Path, columns: Sequence[str]) -> Rows:
    import pyarrow.parquet as pq

    with _parquet_errors(path), pq.ParquetFile(path) as table:
        total = table.metadata.num_rows
        wanted = top_level(columns, table.schema_arrow.names)
    return Rows(_parquet_rows(path, wanted), total)


def _parquet_rows(path: Path, columns: list[str] | None) -> Iterator[Row]:
    import pyarrow.parquet as pq

    # Without the buffer of whole row groups, a file of one huge group costs no more than one of many.
    with _parquet_errors(path), pq.ParquetFile(path, pre_buffer=False) as table:
        yield from batch_rows(_batches(table, columns))


def _batches(table: Any, columns: list[str] | None) -> Iterator[Any]:
    """Batches of rows, as many at a time as cannot exceed _BATCH_BYTES even where each is the largest one.

    Parquet writes a text that many rows share once, and packs what repeats: a file of 1 KB can hold 100 GB.
    """
    for number in range(table.num_row_groups):
        group = table.metadata.row_group(number)
        chunks = [group.column(index) for index in range(group.num_columns)]
        chunks = [one for one in chunks if columns is None or one.path_in_schema.split(".")[0] in columns]
        largest = max((one.total_uncompressed_size for one in chunks), default=0)
        packed = min((one.total_compressed_size for one in chunks), default=0)
        if largest > max(_BATCH_BYTES, _MOST_PACKED * packed):
            raise ValueError(f"a column of row group {number} unpacks to {largest:,} bytes")
        if any(one.num_values > _MOST_ENTRIES * group.num_rows for one in chunks):
            raise ValueError(f"a row of row group {number} has more than {_MOST_ENTRIES:,} entries")
        size = max(1, min(_PARQUET_BATCH, _BATCH_BYTES // max(largest, 1)))
        yield from table.iter_batches(batch_size=size, row_groups=[number], columns=columns)


@contextmanager
def _parquet_errors(path: Path) -> Iterator[None]:
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, ValueError, OverflowError) as error:
        raise _damaged(path, error) from error
    except OSError as error:
        raise (_unreadable(str(path), error) if error.errno else _damaged(path, error)) from error  # Arrow's has none


def _damaged(path: Path, error: Exception) -> ProblemsError:
    reason = str(error).splitlines()[0][:160]
    return ProblemsError(f"{path} is not readable parquet: {reason}", field="source", fix="write the file again")


def batch_rows(batches: Iterator[Any]) -> Iterator[Row]:
    """The rows of Arrow batches or tables, counted through."""
    number = 0
    for batch in batches:
        for row in batch.to_pylist():
            number += 1
            yield f"row {number}", row


def top_level(columns: Sequence[str], present: Sequence[str]) -> list[str] | None:
    """The columns present that hold any of the (dotted) columns wanted; None, which is all, when there is none."""
    tops = {column.split(".")[0] for column in columns}
    return [name for name in present if name in tops] or None


def looks_like_file(source: str) -> bool:
    """Whether a source names a file: it exists, is written as a path, or ends as one of the file kinds does."""
    if source.endswith(FILE_SUFFIXES) or source.startswith((".", "/", "~")):
        return True
    try:
        return Path(source).exists()
    except (OSError, ValueError):  # too long or with a null byte: no path
        return False


def looks_like_hub_id(source: str) -> bool:
    """Whether a source is written as `owner/name`."""
    return re.fullmatch(r"[A-Za-z0-9][\w.-]*/[\w.-]+", source) is not None
