"""Rows of files, each with its place for error messages, and the problem and gold answer in a row of any schema."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rloop_core.errors import ProblemsError
from rloop_core.json_text import check_text, parse_json
from rloop_core.problems.registry import GOLD_COLUMNS, PROBLEM_COLUMNS
from rloop_core.problems.templates import DAPO_AFTER, DAPO_BEFORE
from rloop_core.verifier.read.extract import extract
from rloop_core.verifier.read.normalise import gold_text

Row = tuple[str, Any]
"""(place, row); place is "line 12", "row 12" or "entry 12", counted from 1. A line that is not JSON is a ValueError."""
FILE_SUFFIXES = (".jsonl", ".ndjson", ".json", ".parquet")
MOST_CHARACTERS = 200_000
"""Limit of a problem, a gold answer and a worked solution."""
_WORKED_COLUMNS = ("solution",)
"""Columns with a worked solution, whose gold is in its last box or after GSM8K's `####`."""
_PARQUET_BATCH = 128
"""Rows that are unpacked at a time: a repeated text of a megabyte is stored once, and takes no more than this often."""


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a source, in order."""

    rows: Iterator[Row]
    total: int | None = None
    """Number of rows, if it is known beforehand."""
    warnings: tuple[str, ...] = ()
    """Warnings about the source, for the user."""


def file_rows(path: str, columns: Sequence[str] = ()) -> Rows:
    """Stream the rows of a JSONL, JSON-array or parquet file; of the latter only `columns`, dotted ones if nested.

    Raises:
        ProblemsError: The file is missing, unreadable, or not what its name says; raised here or during iteration.
    """
    local = Path(path).expanduser()
    if not local.is_file():
        what = "is a folder, not a file" if local.is_dir() else "no such file"
        raise ProblemsError(f"{what}: {path}", field="source", fix="give the path of a JSONL or parquet file")
    total = None
    if local.suffix == ".parquet":
        import pyarrow.parquet as pq

        try:
            total = pq.read_metadata(local).num_rows
        except (OSError, ValueError) as error:
            raise _unreadable(path, error) from error
        return Rows(_explained(_parquet_rows(local, columns), path), total)
    return Rows(_explained(_json_rows(local) if local.suffix == ".json" else _jsonl_rows(local), path))


def _explained(rows: Iterator[Row], path: str) -> Iterator[Row]:
    try:
        yield from rows
    except (OSError, ValueError) as error:  # pyarrow's errors are of both kinds
        raise _unreadable(path, error) from error


def _unreadable(path: str, error: Exception) -> ProblemsError:
    reason = str(error).partition("\n")[0][:160]
    return ProblemsError(
        f"cannot read {path}: {reason}", field="source", fix="check its permissions, or write it again"
    )


def _jsonl_rows(path: Path) -> Iterator[Row]:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield f"line {number}", _parsed(line)


def _parsed(line: bytes) -> Any:
    try:
        return parse_json(line)
    except ValueError as error:
        return ValueError(f"is not valid JSON ({str(error)[:120]})")


def _json_rows(path: Path) -> Iterator[Row]:
    rows = _parsed(path.read_bytes())
    if isinstance(rows, list):
        yield from ((f"entry {number}", row) for number, row in enumerate(rows, start=1))
    else:  # JSON lines named .json, or a broken file
        yield from _jsonl_rows(path)


def _parquet_rows(path: Path, columns: Sequence[str]) -> Iterator[Row]:
    import pyarrow.parquet as pq

    # Without pre-buffering, a file with one huge row group takes no more memory than one with many.
    with pq.ParquetFile(path, pre_buffer=False) as table:
        wanted = top_level(columns, table.schema_arrow.names)
        yield from batch_rows(table.iter_batches(batch_size=_PARQUET_BATCH, columns=wanted))


def batch_rows(batches: Iterable[Any]) -> Iterator[Row]:
    """Yield the rows of Arrow batches or tables, numbered from 1."""
    rows = (row for batch in batches for row in batch.to_pylist())
    yield from ((f"row {number}", row) for number, row in enumerate(rows, start=1))


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


def problem_and_gold(
    row: object, problem_columns: Sequence[str] = PROBLEM_COLUMNS, gold_columns: Sequence[str] = GOLD_COLUMNS
) -> tuple[str, str]:
    """Return what the first column that holds a problem and the first that holds a gold answer give.

    A problem may be a chat prompt (list of role and content), of which the user message counts; a gold answer may be a
    list of acceptable ones, `$a$ OR $b$` for the verifier. A dotted column reads a nested field.

    Raises:
        ValueError: The row is not an object, or lacks a problem or a usable gold; the message says which.
    """
    fields, problem = _fields_and_problem(row, problem_columns)
    gold = _gold(fields, gold_columns)
    _check("gold answer", gold)
    return problem, gold


def problem_and_columns(
    row: object, problem_columns: Sequence[str], gold_columns: Sequence[str]
) -> tuple[str, str, str]:
    """Return a row's problem, its gold for a reward other than the verifier, and its other columns as a JSON object.

    The gold is the first gold column's text, or its value as JSON; empty without one, for rewards that need none.

    Raises:
        ValueError: The row is not an object, has no problem, or a value that is too long; the message says which.
    """
    fields, problem = _fields_and_problem(row, problem_columns)
    found = [value for column in gold_columns if (value := _field(fields, column)) is not None]
    gold = found[0] if found and isinstance(found[0], str) else json.dumps(found[0]) if found else ""
    used = {*problem_columns, *gold_columns}
    others = {name: value for name, value in fields.items() if name not in used and value is not None}
    columns = json.dumps(others, sort_keys=True, default=str) if others else ""
    for name, text in (("gold answer", gold), ("row", columns)):
        _check(name, text)
        if len(text) > MOST_CHARACTERS:
            raise ValueError(f"has a {name} of {len(text):,} characters, and {MOST_CHARACTERS:,} are the most")
    return problem, gold, columns


def _fields_and_problem(row: object, columns: Sequence[str]) -> tuple[dict[str, Any], str]:
    if isinstance(row, ValueError):
        raise row
    if not isinstance(row, dict):
        raise ValueError("is not an object with named fields")
    problem = next((text for column in columns if (text := _problem(_field(row, column)))), None)
    if problem is None:
        raise ValueError(f"has no problem text in {', '.join(columns)}")
    _check("problem", problem)
    return row, problem


def _check(name: str, text: str) -> None:
    try:
        check_text(text)
    except ValueError as error:
        raise ValueError(f"has a {name} that {error}") from None


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


def _problem(value: object) -> str | None:
    """Return the problem in a text, without DAPO's instructions, or in a chat prompt.

    Raises:
        ValueError: The chat has earlier turns, without which its last message may be another problem.
    """
    if isinstance(value, str):
        text = value.strip()
        if text.startswith(DAPO_BEFORE) and text.endswith(DAPO_AFTER):
            text = text[len(DAPO_BEFORE) : -len(DAPO_AFTER)].strip()
        return text or None
    turns = [turn for turn in _entries(value) if isinstance(turn, dict) and turn.get("role") != "system"]
    while turns and turns[-1].get("role") != "user":
        turns.pop()
    if len(turns) > 1:
        raise ValueError("has turns before its last user message, and a problem is one message")
    return _problem(content) if turns and isinstance(content := turns[0].get("content"), str) else None


def _gold(row: dict[str, Any], columns: Sequence[str]) -> str:
    reason = f"has no gold answer in {', '.join(columns)}"
    for column in columns:
        value = _field(row, column)
        if value is None:
            continue
        try:
            return _any_of({_one(member, column) for member in _entries(value) if member is not None})
        except ValueError as error:
            reason = f"field {column}: {error}"
    raise ValueError(reason)


def _any_of(golds: set[str]) -> str:
    """Return acceptable golds as one text, in the form that the verifier reads as several."""
    if not golds:
        raise ValueError("the list of gold answers is empty")
    if len(golds) == 1:
        return golds.pop()
    if any("$" in gold.replace("\\$", "") or re.search(r"\sOR\s", gold) for gold in golds):
        raise ValueError("a list of gold answers with $ or OR inside of one cannot be told apart from a longer list")
    return " OR ".join(f"${gold}$" for gold in sorted(golds))


def _one(value: object, column: str) -> str:
    """Return one gold; of a worked solution its last box, or what follows the last `####`."""
    if isinstance(value, str) and column in _WORKED_COLUMNS:
        answer, boxes, *_ = extract(value)
        if boxes and answer is not None:
            return gold_text(answer)
        if "####" not in value:
            raise ValueError("the solution has neither a closed \\boxed{} nor ####")
    return gold_text(value)
