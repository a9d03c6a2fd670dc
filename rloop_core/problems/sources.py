"""Rows of files, hub data sets and generators, and the problem and gold answer in a row of any schema."""

import json
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rloop_core.errors import ProblemsError
from rloop_core.json_text import check_text, parse_json
from rloop_core.problems.registry import GENERATED, PROCEDURAL_PREFIX, HubSource, closest
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
_HUB_BATCH = 1024
_COMMIT = re.compile("[0-9a-f]{40}")
_TUPLE = "__tuple__"


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a source, in order."""

    rows: Iterator[Row]
    total: int | None = None
    """Number of rows, if it is known beforehand."""
    warnings: tuple[str, ...] = ()
    """Warnings about the source, for the user."""


def file_rows(path: str, columns: Sequence[str]) -> Rows:
    """Stream the rows of a JSONL, JSON-array or parquet file; of the latter only `columns`, dotted ones if nested.

    Raises ProblemsError if the file is missing; during iteration if it is unreadable, or not what its name says.
    """
    local = Path(path).expanduser()
    if not local.is_file():
        what = "is a folder, not a file" if local.is_dir() else "no such file"
        raise ProblemsError(f"{what}: {path}", field="source", fix="give the path of a JSONL or parquet file")
    if local.suffix == ".parquet":
        import pyarrow.parquet as pq

        with _explained(local):
            return Rows(_parquet_rows(local, columns), pq.read_metadata(local).num_rows)
    return Rows(_json_rows(local) if local.suffix == ".json" else _jsonl_rows(local))


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:  # pyarrow's errors are of both kinds
        what = f"cannot read {path}: {str(error).partition(chr(10))[0][:160]}"
        raise ProblemsError(what, field="source", fix="check its permissions, or write it again") from error


def _jsonl_rows(path: Path) -> Iterator[Row]:
    with _explained(path), path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield f"line {number}", _parsed(line)


def _parsed(line: bytes) -> Any:
    try:
        return parse_json(line)
    except ValueError as error:
        return ValueError(f"is not valid JSON ({str(error)[:120]})")


def _json_rows(path: Path) -> Iterator[Row]:
    with _explained(path):
        rows = _parsed(path.read_bytes())
    if isinstance(rows, list):
        yield from ((f"entry {number}", row) for number, row in enumerate(rows, start=1))
    else:  # JSON lines named .json, or a broken file
        yield from _jsonl_rows(path)


def _parquet_rows(path: Path, columns: Sequence[str]) -> Iterator[Row]:
    import pyarrow.parquet as pq

    # Without pre-buffering, a file with one huge row group takes no more memory than one with many.
    with _explained(path), pq.ParquetFile(path, pre_buffer=False) as table:
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


def hub_rows(hub: HubSource, *, split: str | None, revision: str | None, config: str | None) -> Rows:
    """Return the rows of a hub data set; split, revision and config override the registry's.

    If the hub cannot be reached, the local cache is used, provided that it has the pinned commit. Raises ProblemsError
    if it has not, or if the hub has no such data set, split, config or revision.
    """
    commit = revision or hub.revision
    table = _hub_table(hub.hub_id, config or hub.config, split or hub.split, commit)
    # In the cache, a data set is a folder of its files, named by the commit.
    folders = [part for file in table.cache_files for part in Path(file["filename"]).parts if _COMMIT.fullmatch(part)]
    read = folders[-1] if folders else None
    is_pinned = bool(commit and _COMMIT.fullmatch(commit))
    if is_pinned and read and read != commit:  # offline, `datasets` takes any version of a data set from its cache
        what = f"the Hugging Face hub is unreachable, and the local cache has {hub.hub_id} at {read}, not at {commit}"
        fix = "connect to the network once, or set revision to the commit that is in the cache"
        raise ProblemsError(what, field="revision", fix=fix)
    such_as = f", such as revision: {read}, which was read" if read else ""
    warning = f"{hub.hub_id} may change on the hub: {commit or 'no revision'} is not a commit{such_as}"
    wanted = top_level((*hub.problem_columns, *hub.gold_columns), table.column_names)
    table = table.select_columns(wanted) if wanted else table
    rows = batch_rows(table.with_format("arrow").iter(batch_size=_HUB_BATCH))
    return Rows(rows, table.num_rows, () if is_pinned else (warning,))


def _hub_table(hub_id: str, config: str | None, split: str, revision: str | None) -> Any:
    import datasets
    from huggingface_hub.errors import RevisionNotFoundError

    try:
        return datasets.load_dataset(hub_id, config, split=split, revision=revision)
    except Exception as error:  # the library's own, a damaged cache, a full disk, a script-based data set
        what, field = f"data set {hub_id} cannot be loaded: {str(error)[:200] or type(error).__name__}", "source"
        fix = "check source, revision and the disk of HF_HOME"
        if isinstance(error.__cause__, RevisionNotFoundError):
            what, field = f"data set {hub_id} has no revision {revision}", "revision"
            fix = "name a commit, branch or tag that exists"
        elif isinstance(error, datasets.exceptions.DatasetNotFoundError):
            what = f"the hub has no data set {hub_id}, or it needs a login"
            fix = "check the name, or run `hf auth login`"
        elif isinstance(error, ConnectionError | TimeoutError):
            what = f"the Hugging Face hub is unreachable, and {hub_id} is not in the local cache"
            fix = "check the network, or give the path of a JSONL or parquet file"
        elif isinstance(error, ValueError):
            field, fix = "split", "check split, revision and params.config"
        raise ProblemsError(what, field=field, fix=fix) from error


def procedural_rows(task: str, *, size: int | None, seed: int, params: Mapping[str, Any]) -> Rows:
    """Generate `size` problems (default 100) of a reasoning-gym task; equal seed and params give equal problems.

    Raises ProblemsError if there is no such task, or it refuses a parameter.
    """
    generator = reasoning_gym()
    from reasoning_gym.factory import DATASETS

    if task not in DATASETS:
        fix = closest(PROCEDURAL_PREFIX + task, [PROCEDURAL_PREFIX + name for name in sorted(DATASETS)])
        raise ProblemsError(f"reasoning_gym has no task {task!r}", field="source", fix=fix)
    size = size or GENERATED
    try:
        entries = generator.create_dataset(task, seed=seed, size=size, **params)
    except (TypeError, ValueError, AssertionError) as error:
        what = f"reasoning_gym task {task} refuses {dict(params)}: {str(error)[:200] or type(error).__name__}"
        raise ProblemsError(what, field="params", fix=f"use the parameters of {task}'s config class") from error
    rows = (
        {"problem": each["question"], "answer": each["answer"], "metadata": plain_metadata(each["metadata"])}
        for each in entries
    )
    return Rows(((f"entry {number}", row) for number, row in enumerate(rows, start=1)), size)


def reasoning_gym() -> Any:
    """Import the package without Python's warnings of what it loads, which come where that is first compiled."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        import reasoning_gym

    return reasoning_gym


def plain_metadata(value: Any) -> Any:
    """Return an entry's metadata as JSON carries it; `entry_metadata` restores the tuples."""
    if isinstance(value, dict):
        return {str(key): plain_metadata(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        parts = [plain_metadata(part) for part in value]
        return parts if isinstance(value, list) else {_TUPLE: parts}
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def entry_metadata(value: Any) -> Any:
    """Return the metadata that `plain_metadata` wrote, for the task's `score_answer`."""
    if isinstance(value, dict):
        if value.keys() == {_TUPLE}:
            return tuple(entry_metadata(part) for part in value[_TUPLE])
        return {key: entry_metadata(part) for key, part in value.items()}
    return [entry_metadata(part) for part in value] if isinstance(value, list) else value


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
    row: object, problem_columns: Sequence[str], gold_columns: Sequence[str], math: bool
) -> tuple[str, str, str]:
    """Return what the first column that holds a problem and the first that holds a gold answer give.

    A problem may be a chat prompt (list of role and content), of which the user message counts; a gold answer for the
    verifier (`math`) may be a list of acceptable ones, `$a$ OR $b$`. A dotted column reads a nested field. For other
    rewards the gold is the column's text, or its value as JSON, or empty without one, and the third value has the row's
    other columns as a JSON object. Raises ValueError, which says why, if the row is not an object, lacks a problem or a
    usable gold, or has a value that is too long.
    """
    if isinstance(row, ValueError):
        raise row
    if not isinstance(row, dict):
        raise ValueError("is not an object with named fields")
    problem = next((text for column in problem_columns if (text := _problem(_field(row, column)))), None)
    if problem is None:
        raise ValueError(f"has no problem text in {', '.join(problem_columns)}")
    _check("problem", problem)
    if math:
        gold = _gold(row, gold_columns)
        _check("gold answer", gold)
        return problem, gold, ""
    found = [value for column in gold_columns if (value := _field(row, column)) is not None]
    gold = found[0] if found and isinstance(found[0], str) else json.dumps(found[0]) if found else ""
    used = {*problem_columns, *gold_columns}
    others = {name: value for name, value in row.items() if name not in used and value is not None}
    columns = json.dumps(others, sort_keys=True, default=str) if others else ""
    for name, text in (("gold answer", gold), ("row", columns)):
        _check(name, text)
        if len(text) > MOST_CHARACTERS:
            raise ValueError(f"has a {name} of {len(text):,} characters, and {MOST_CHARACTERS:,} are the most")
    return problem, gold, columns


def _check(name: str, text: str) -> None:
    try:
        check_text(text)
    except ValueError as error:
        raise ValueError(f"has a {name} that {error}") from None


def _field(row: dict[str, Any], column: str) -> Any:
    """Return the value at a dotted path, None when a part is missing; raise ValueError if its text is too long."""
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

    Raises ValueError if the chat has earlier turns, without which its last message may be another problem.
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
