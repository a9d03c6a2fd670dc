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
from rloop_core.verifier import Policies
from rloop_core.verifier.read.extract import extract
from rloop_core.verifier.read.normalise import gold_text

Row = tuple[str, Any]
"""(place, row); place is "line 12", "row 12" or "entry 12", counted from 1."""
FILE_SUFFIXES = (".jsonl", ".ndjson", ".json", ".parquet")
MOST_CHARACTERS = 200_000
"""Limit of a problem, a gold answer and a worked solution."""
_WORKED_COLUMNS = ("solution",)
"""Columns with a worked solution, whose gold is in its last box or after GSM8K's `####`."""
_ALL_BOXES = Policies(boxes="agreeing")
_PARQUET_BATCH = 1024
_BATCH_BYTES = 2**29
_MOST_PACKED = 1000
_MOST_ENTRIES = 1000
_MOST_JSON_BYTES = 2**30
_MOST_LINE_BYTES = 64 * 2**20
_FORMATS = (
    (b"\xff\xfe\0\0", "UTF-32 text", "iconv -f UTF-32 -t UTF-8"),
    (b"\0\0\xfe\xff", "UTF-32 text", "iconv -f UTF-32 -t UTF-8"),
    (b"\xff\xfe", "UTF-16 text", "iconv -f UTF-16 -t UTF-8"),
    (b"\xfe\xff", "UTF-16 text", "iconv -f UTF-16 -t UTF-8"),
    (b"\x1f\x8b", "packed by gzip", "gunzip -c"),
    (b"(\xb5/\xfd", "packed by zstd", "zstd -dc"),
    (b"\xfd7zXZ", "packed by xz", "xz -dc"),
    (b"BZh", "packed by bzip2", "bzip2 -dc"),
    (b"PK\3\4", "a zip archive or a spreadsheet", "unzip -p"),
)
"""How files of other formats begin, what they are, and a command that writes the JSON lines in them."""
_NAMES = re.compile(r"\b(?:problem|question|prompt|answer|solution)\b", re.IGNORECASE)
"""A column's name in the first line of a table."""


class MalformedLineError(ValueError):
    """A line that is not JSON; it is yielded in place of the row, so that the caller may skip it."""


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a source.

    Attributes:
        rows: The rows in order; an iterator.
        total: Number of rows, if it is known beforehand.
        warnings: Warnings about the source, for the user.
        digest: `ProblemSet.digest` of the whole set when it was pinned, if it is known.
    """

    rows: Iterator[Row]
    total: int | None = None
    warnings: tuple[str, ...] = ()
    digest: str | None = None


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
    head = _head(local)
    if head.startswith(b"PAR1") or (local.suffix == ".parquet" and not head.startswith((b"{", b"["))):
        return _parquet(local, columns)
    _refuse_other_formats(local, head)
    return Rows(_explained(_json_rows(local) if local.suffix == ".json" else _jsonl_rows(local), path))


def _head(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(4096)
    except OSError as error:
        raise _unreadable(str(path), error) from error


def _refuse_other_formats(path: Path, head: bytes) -> None:
    """Refuse a file none of whose lines could be read, and say how to write it as JSON lines.

    Raises:
        ProblemsError: The file is in another encoding, packed, or a table of text.
    """
    what = command = None
    for start, kind, unpack in _FORMATS:
        if head.startswith(start):
            what, command = kind, f"{unpack} {path} > problems.jsonl"
            break
    else:
        first = head.decode("utf-8-sig", errors="replace").strip().partition("\n")[0]
        table = not first.startswith(("{", "[")) and re.search(r"[,;\t]", first)
        if table and (path.suffix in (".csv", ".tsv") or _NAMES.search(first)):
            read = f"read_csv({str(path)!r}, sep={table[0]!r})"
            what, command = "a table (CSV)", f"pandas.{read}.to_json('problems.jsonl', orient='records', lines=True)"
        elif "\r" in first.rstrip("\r"):
            what, command = "text whose lines end in CR alone", f"tr '\\r' '\\n' < {path} > problems.jsonl"
    if what:
        fix = f"write it as JSON lines in UTF-8: {command}"
        raise ProblemsError(f"{path} is {what}, which is not read", field="source", fix=fix)


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
        total = table.metadata.num_rows
        wanted = top_level(columns, table.schema_arrow.names)
    return Rows(_parquet_rows(path, wanted), total)


def _parquet_rows(path: Path, columns: list[str] | None) -> Iterator[Row]:
    import pyarrow.parquet as pq

    # Without pre-buffering, a file with one huge row group takes no more memory than one with many.
    with _parquet_errors(path), pq.ParquetFile(path, pre_buffer=False) as table:
        yield from batch_rows(_batches(table, columns))


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
    except (pa.ArrowException, ValueError, OverflowError) as error:
        raise _damaged(path, error) from error
    except OSError as error:
        raise (_unreadable(str(path), error) if error.errno else _damaged(path, error)) from error  # not Arrow's


def _damaged(path: Path, error: Exception) -> ProblemsError:
    reason = str(error).splitlines()[0][:160]
    return ProblemsError(f"{path} is not readable parquet: {reason}", field="source", fix="write the file again")


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
    """The problem and the gold answer in a row.

    Attributes:
        problem: The text without DAPO's instructions; of a chat prompt the user message.
        gold: The gold answer; several acceptable ones are `$a$ OR $b$`, sorted, of which the verifier accepts each.
        system: The chat prompt's system message was left out.
        others: Answers that the gold's text gives before the gold, in boxes or after `####`.
    """

    problem: str
    gold: str
    system: bool
    others: tuple[str, ...]


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
    answer, boxes, _, others = extract(value, _ALL_BOXES)
    if column in _WORKED_COLUMNS:
        if boxes and answer is not None:
            return gold_text(answer), others
        if "####" not in value:
            raise ValueError("the solution has neither a closed \\boxed{} nor ####")
    return gold_text(value), (*others, *(text.strip() for text in value.split("####")[1:-1]))
