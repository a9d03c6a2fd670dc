"""Raw rows from files, the hub and generators, each with the name by which an error refers to it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rloop_core.errors import ProblemsError
from rloop_core.problems.registry import PROCEDURAL_PREFIX, HubSource, closest

Row = tuple[str, Any]
"""(place, row); place is "line 12", "row 12" or "entry 12", counted from 1."""
FILE_SUFFIXES = (".jsonl", ".ndjson", ".json", ".parquet")
_DEFAULT_SIZE = 100
_PARQUET_BATCH = 1024


class MalformedLineError(ValueError):
    """A line that is not JSON; takes the place of its row, so that the reader decides whether to skip it."""


def file_rows(path: str) -> Iterator[Row]:
    """Rows of a JSONL, JSON-array or parquet file, streamed. A line that is not JSON comes as a MalformedLineError.

    Raises:
        ProblemsError: The file is missing, unreadable, or not what its name says.
    """
    local = Path(path).expanduser()
    if not local.is_file():
        what = "is a folder, not a file" if local.is_dir() else "no such file"
        raise ProblemsError(f"{what}: {path}", field="source", fix="give the path of a JSONL or parquet file")
    try:
        if local.suffix == ".parquet":
            yield from _parquet_rows(local)
        elif local.suffix == ".json":
            yield from _json_rows(local)
        else:
            yield from _jsonl_rows(local)
    except OSError as error:
        raise ProblemsError(
            f"cannot read {path}: {error.strerror or error}", field="source", fix="check its permissions"
        ) from error


def _jsonl_rows(path: Path) -> Iterator[Row]:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield f"line {number}", _parsed(line)


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        return MalformedLineError(f"is not valid JSON ({str(error)[:120]})")


def _json_rows(path: Path) -> Iterator[Row]:
    rows = _parsed(path.read_bytes())
    if not isinstance(rows, list):  # JSON lines under another name, or a broken file: the lines tell
        yield from _jsonl_rows(path)
        return
    for number, row in enumerate(rows, start=1):
        yield f"entry {number}", row


def _parquet_rows(path: Path) -> Iterator[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        number = 0
        with pq.ParquetFile(path) as table:
            for batch in table.iter_batches(batch_size=_PARQUET_BATCH):
                for row in batch.to_pylist():
                    number += 1
                    yield f"row {number}", row
    except pa.ArrowException as error:
        reason = str(error).splitlines()[0][:160]
        raise ProblemsError(
            f"{path} is not readable parquet: {reason}", field="source", fix="write the file again"
        ) from error


def hub_rows(source: HubSource, *, split: str | None, revision: str | None, config: str | None) -> Iterator[Row]:
    """Rows of a hub data set; split, revision and config override the registry's.

    Raises:
        ProblemsError: The hub cannot be reached, or it has no such data set, split, config or revision.
    """
    import datasets

    split = split or source.split
    try:
        rows: Iterable[Any] = datasets.load_dataset(
            source.hub_id, config or source.config, split=split, revision=revision or source.revision
        )
    except ValueError as error:
        what = f"data set {source.hub_id} cannot be loaded: {_one_line(error)}"
        raise ProblemsError(what, field="split", fix="check split, revision and params.config") from error
    except datasets.exceptions.DatasetNotFoundError as error:
        what = f"the hub has no data set {source.hub_id}, or it needs a login"
        raise ProblemsError(what, field="source", fix="check the name, or run `hf auth login`") from error
    except OSError as error:
        what = f"the Hugging Face hub is unreachable, and {source.hub_id} is not in the local cache"
        raise ProblemsError(
            what, field="source", fix="check the network, or give the path of a JSONL or parquet file"
        ) from error
    except Exception as error:  # the library's own kinds: a damaged cache, a script-based data set, ...
        what = f"data set {source.hub_id} cannot be loaded: {_one_line(error)}"
        raise ProblemsError(what, field="source", fix="check source, split and revision") from error
    for number, row in enumerate(rows, start=1):
        yield f"row {number}", row


def procedural_rows(task: str, *, size: int | None, seed: int, params: Mapping[str, Any]) -> Iterator[Row]:
    """Problems of a reasoning-gym task: `size` of them (100 by default), the same for the same seed and params.

    Raises:
        ProblemsError: No such task, or a difficulty knob that the task does not take.
    """
    import reasoning_gym
    from reasoning_gym.factory import DATASETS

    if task not in DATASETS:
        raise ProblemsError(
            f"reasoning_gym has no task {task!r}",
            field="source",
            fix=closest(PROCEDURAL_PREFIX + task, [PROCEDURAL_PREFIX + name for name in sorted(DATASETS)]),
        )
    try:
        entries = reasoning_gym.create_dataset(task, seed=seed, size=size or _DEFAULT_SIZE, **params)
    except (TypeError, ValueError, AssertionError) as error:
        what = f"reasoning_gym task {task} refuses {dict(params)}: {_one_line(error)}"
        raise ProblemsError(what, field="params", fix=f"use the knobs of {task}'s config class") from error
    for number, entry in enumerate(entries, start=1):
        yield f"entry {number}", {"problem": entry["question"], "answer": entry["answer"]}


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


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
