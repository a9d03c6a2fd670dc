"""Rows of files, each with its place for error messages, and the problem and gold answer in a row of any schema."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rloop_core.errors import ProblemsError
from rloop_core.json_text import check_text, parse_json
from rloop_core.problems.registry import GOLD_COLUMNS, PROBLEM_COLUMNS
from rloop_core.problems.templates import DAPO_AFTER, DAPO_BEFORE
from rloop_core.verifier.read.extract import extract
from rloop_core.verifier.read.normalise import gold_text

Row = tuple[str, Any]
"""(place, row); place is "line 12", "row 12" or "entry 12", counted from 1."""
FILE_SUFFIXES = (".jsonl", ".ndjson", ".json", ".parquet")
MOST_CHARACTERS = 200_000
"""Limit of a problem, a gold answer and a worked solution."""
_WORKED_COLUMNS = ("solution",)
"""Columns with a worked solution, whose gold is in its last box or after GSM8K's `####`."""
_PARQUET_BATCH = 1024
_BATCH_BYTES = 2**29
_MOST_PACKED = 1000
_MOST_ENTRIES = 1000
_MOST_JSON_BYTES = 2**30
_MOST_LINE_BYTES = 64 * 2**20


class MalformedLineError(ValueError):
    """A line that is not JSON; it is yielded in place of the row, so that the caller may skip it."""


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a source, in order."""

    rows: Iterator[Row]
    total: int | None = None
    """Number of rows, if it is known beforehand."""
    warnings: tuple[str, ...] = ()
    """Warnings about the source, for the user."""
    digest: str | None = None
    """`ProblemSet.digest` of the whole set when it was pinned, if it is known."""


def file_rows(path: str, columns: Sequence[str] = ()) -> Rows:
    """Stream the rows of a JSONL, JSON-array or parquet file. A line that is not JSON becomes a MalformedLineError.

    Args:
        path: The file.
        columns: Columns to read from a parquet file, dotted ones for nested fields.

    Raises:
        ProblemsError: The file is missing, unreadable, or not what its name says; raised here or during iteration.
    """
    local = Path(path).expanduser()
    if not local.is_file():
        what = "is a folder, not a file" if local.is_dir() else "no such file"
        raise ProblemsError(f"{what}: {path}", field="source", fix="give the path of a JSONL or parquet file")
    try:
        with local.open("rb") as file:
            head = file.read(4096)
    except OSError as error:
        raise _unreadable(path, error) from error
    if head.startswith(b"PAR1") or (local.suffix == ".parquet" and not head.startswith((b"{", b"["))):
        return _parquet(local, columns)
    if b"\0" in head:
        what = f"{path} is packed, or no text in UTF-8"
        raise ProblemsError(what, field="source", fix="unpack or convert it: JSON lines in UTF-8, or parquet")
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
    if not isinstance(rows, list):  # JSON lines named .json, or a broken file
        yield from _jsonl_rows(path)
        return
    for number, row in enumerate(rows, start=1):
        yield f"entry {number}", row


def _parquet(path: Path, columns: Sequence[str]) -> Rows:
    import pyarrow.parquet as pq

    with _parquet_errors(path), pq.ParquetFile(path) as table:
        total, wanted = table.metadata.num_rows, top_level(columns, table.schema_arrow.names)

    def rows() -> Iterator[Row]:
        # Without pre-buffering, a file with one huge row group takes no more memory than one with many.
        with _parquet_errors(path), pq.ParquetFile(path, pre_buffer=False) as table:
            yield from batch_rows(_batches(table, wanted))

    return Rows(rows(), total)


def _batches(table: Any, columns: list[str] | None) -> Iterator[Any]:
    """Yield batches small enough to stay below _BATCH_BYTES even if every row were the largest one.

    Parquet stores a repeated text once and compresses repetitions: a file of 1 KB can hold 100 GB.

    Raises:
        ValueError: A column unpacks to too much, or a row has too many entries.
    """
    for number in range(table.num_row_groups):
        group = table.metadata.row_group(number)
        chunks = [group.column(index) for index in range(group.num_columns)]
        chunks = [chunk for chunk in chunks if columns is None or chunk.path_in_schema.split(".")[0] in columns]
        largest = max((chunk.total_uncompressed_size for chunk in chunks), default=0)
        packed = min((chunk.total_compressed_size for chunk in chunks), default=0)
        if largest > max(_BATCH_BYTES, _MOST_PACKED * packed):
            raise ValueError(f"a column of row group {number} unpacks to {largest:,} bytes")
        if any(chunk.num_values > _MOST_ENTRIES * group.num_rows for chunk in chunks):
            raise ValueError(f"a row of row group {number} has more than {_MOST_ENTRIES:,} entries")
        size = max(1, min(_PARQUET_BATCH, _BATCH_BYTES // max(largest, 1)))
        yield from table.iter_batches(batch_size=size, row_groups=[number], columns=columns)


@contextmanager
def _parquet_errors(path: Path) -> Iterator[None]:
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, ValueError, OverflowError, OSError) as error:
        if isinstance(error, OSError) and error.errno:  # not Arrow's
            raise _unreadable(str(path), error) from error
        what = f"{path} is not readable parquet: {str(error).partition(chr(10))[0][:160]}"
        raise ProblemsError(what, field="source", fix="write the file again") from error


def batch_rows(batches: Iterator[Any]) -> Iterator[Row]:
    """Yield the rows of Arrow batches or tables, numbered from 1."""
    rows = (row for batch in batches for row in batch.to_pylist())
    for number, row in enumerate(rows, start=1):
        yield f"row {number}", row


def top_level(columns: Sequence[str], present: Sequence[str]) -> list[str] | None:
    """Return the present columns that hold any of the wanted (dotted) columns; None (= all) when there is none."""
    tops = {column.split(".")[0] for column in columns}
    return [name for name in present if name in tops] or None


def looks_like_file(source: str) -> bool:
    """Return True if a source names a file: it exists, starts like a path, or has a known suffix."""
    if source.endswith(FILE_SUFFIXES) or source.startswith((".", "/", "~")):
        return True
    try:
        return Path(source).exists()
    except (OSError, ValueError):  # too long, or with a null byte
        return False


def looks_like_hub_id(source: str) -> bool:
    """Return True if a source has the form `owner/name`."""
    return re.fullmatch(r"[A-Za-z0-9][\w.-]*/[\w.-]+", source) is not None


class Found(NamedTuple):
    """The problem and the gold answer in a row."""

    problem: str
    """The text without DAPO's instructions; of a chat prompt the user message."""
    gold: str
    """The gold answer; several acceptable ones are `$a$ OR $b$`, sorted, of which the verifier accepts each."""
    system: bool
    """The chat prompt's system message was left out."""
    others: tuple[str, ...]
    """Answers that the gold's text gives before the gold, in boxes or after `####`."""


def problem_and_gold(
    row: object, problem_columns: Sequence[str] = PROBLEM_COLUMNS, gold_columns: Sequence[str] = GOLD_COLUMNS
) -> Found:
    """Return what the first column that holds a problem and the first that holds a gold answer give.

    A problem may be a chat prompt (list of role and content), a gold answer a list of acceptable ones. A dotted column
    reads a nested field.

    Raises:
        ValueError: The row is not an object, or lacks a problem or a usable gold; the message says which.
    """
    if not isinstance(row, dict):
        raise ValueError("is not an object with named fields")
    found = next((each for column in problem_columns if (each := _problem(_field(row, column)))), None)
    if found is None:
        raise ValueError(f"has no problem text in {', '.join(problem_columns)}")
    problem, system = found
    gold, others = _gold(row, gold_columns)
    for name, text in (("problem", problem), ("gold answer", gold)):
        try:
            check_text(text)
        except ValueError as error:
            raise ValueError(f"has a {name} that {error}") from None
    return Found(problem, gold, system, others)


def _field(row: dict[str, Any], column: str) -> Any:
    """Return the value at a dotted path, None when a part is missing.

    Raises:
        ValueError: The text is too long.
    """
    value: Any = row
    for part in column.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    for text in (message.get("content") if isinstance(message, dict) else message for message in _entries(value)):
        if isinstance(text, str) and len(text) > MOST_CHARACTERS:
            raise ValueError(f"has {len(text):,} characters in {column}, and {MOST_CHARACTERS:,} are the most")
    return value


def _entries(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else (value,)


def _problem(value: object) -> tuple[str, bool] | None:
    """Return the problem in a text or a chat prompt, and whether a system message was left out.

    Raises:
        ValueError: The chat has earlier turns, without which its last message may be another problem.
    """
    if isinstance(value, str):
        text = value.strip()
        if text.startswith(DAPO_BEFORE) and text.endswith(DAPO_AFTER):
            text = text[len(DAPO_BEFORE) : -len(DAPO_AFTER)].strip()
        return (text, False) if text else None
    if not isinstance(value, list | tuple):
        return None
    messages = [message for message in value if isinstance(message, dict)]
    while messages and messages[-1].get("role") != "user":
        messages.pop()
    found = _problem(content) if messages and isinstance(content := messages[-1].get("content"), str) else None
    if found and any(message.get("role") in ("user", "assistant") for message in messages[:-1]):
        raise ValueError("has turns before its last user message, and a problem is one message")
    return found and (found[0], len(messages) > 1)


def _gold(row: dict[str, Any], columns: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    reason = f"has no gold answer in {', '.join(columns)}"
    for column in columns:
        value = _field(row, column)
        if value is None:
            continue
        try:
            return _any_of([_one(member, column) for member in _entries(value) if member is not None])
        except ValueError as error:
            reason = f"field {column}: {error}"
    raise ValueError(reason)


def _any_of(found: Sequence[tuple[str, tuple[str, ...]]]) -> tuple[str, tuple[str, ...]]:
    """Return acceptable golds as one text, in the form that the verifier reads as several, and the other answers."""
    golds = sorted({gold for gold, _ in found})
    if not golds:
        raise ValueError("the list of gold answers is empty")
    others = tuple(other for _, others in found for other in others)
    if len(golds) == 1:
        return golds[0], others
    if any("$" in gold.replace("\\$", "") or re.search(r"\sOR\s", gold) for gold in golds):
        raise ValueError("a list of gold answers with $ or OR inside of one cannot be told apart from a longer list")
    return " OR ".join(f"${gold}$" for gold in golds), others


def _one(value: object, column: str) -> tuple[str, tuple[str, ...]]:
    """Return one gold, of a worked solution its last box or what follows the last `####`, and the answers before it."""
    if not isinstance(value, str):
        return gold_text(value), ()
    answer, boxes, _, others = extract(value)
    if column in _WORKED_COLUMNS:
        if boxes and answer is not None:
            return gold_text(answer), others
        if "####" not in value:
            raise ValueError("the solution has neither a closed \\boxed{} nor ####")
    return gold_text(value), (*others, *(text.strip() for text in value.split("####")[1:-1]))
