"""Read completions to score: JSON lines, or the samples that `rloop evaluate` and the evaluate stage store."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from rloop_core.errors import ProblemsError, RLoopError
from rloop_core.verifier.stream import LineReader, judgeable, parse_object

STDIN = "-"
_COLUMNS = ["problem_id", "sample", "completion", "gold", "finished"]


@dataclass(frozen=True, slots=True)
class Row:
    """One completion to score."""

    problem_id: str
    completion: str
    answer: Any
    finished: bool


def read_completions(sources: Sequence[str], skip_malformed: bool) -> tuple[list[Row], int]:
    """Return the rows of all sources, and the number of skipped lines.

    Args:
        sources: JSON-lines files (`-`: stdin), parquet files of trajectories, or folders of such parquet files.
        skip_malformed: Skip and count bad lines. Parquet files have none: one that is off the schema is an error.

    Raises:
        ProblemsError: No such file, one given twice, a malformed line (named by its number) that may not be skipped,
            a stored sample that two files hold, or no rows.
    """
    files = [path for source in sources for path in _files(source)]
    for path in files:
        if files.count(path) > 1:
            raise ProblemsError("is given twice", field=path, fix="its samples would count twice: name it once")
    rows: list[Row] = []
    skipped = 0
    seen: dict[tuple[str, int], str] = {}
    for path in files:
        if path.endswith(".parquet"):
            rows += _stored(path, seen)
            continue
        for row in _lines(path, skip_malformed):
            if row is None:
                skipped += 1
            else:
                rows.append(row)
    if not rows:
        fix = "give at least one line"
        raise ProblemsError(f"holds no completions ({skipped} lines skipped)", field=", ".join(sources), fix=fix)
    return rows, skipped


def _files(source: str) -> list[str]:
    """Return the source itself, or the parquet files below a folder, sorted."""
    if source == STDIN:
        return [source]
    path = Path(source).expanduser()
    if not path.is_dir():
        return [str(path)]
    files = sorted(str(file) for file in path.rglob("*.parquet"))
    if not files:
        raise ProblemsError("holds no parquet files", field=source, fix="name a folder of `rloop evaluate`, or a file")
    return files


def _lines(source: str, skip_malformed: bool) -> Iterator[Row | None]:
    """Yield the rows of a JSON-lines file, and None for a skipped line."""
    with _opened(source) as stream:
        for batch in LineReader(stream).batches():
            for number, line in batch:
                try:
                    yield _row(parse_object(number, line))
                except ValueError as error:
                    if not skip_malformed:
                        fix = "correct it, or pass --skip-malformed to skip and count such lines"
                        raise ProblemsError(f"line {number}: {error}", field=source, fix=fix) from None
                    yield None


@contextmanager
def _opened(source: str) -> Iterator[BinaryIO]:
    if source == STDIN:
        yield sys.stdin.buffer
        return
    try:
        with open(source, "rb") as stream:
            yield stream
    except OSError as error:
        reason = error.strerror or str(error)
        raise ProblemsError(f"cannot be read: {reason}", field=source, fix="name a JSON-lines file") from error


def _row(content: dict[str, Any]) -> Row:
    problem = content.get("problem_id")
    if not isinstance(problem, str | int | float) or isinstance(problem, bool):
        raise ValueError(f"field problem_id {'is missing' if problem is None else 'must be text or a number'}")
    completion, answer, finished = judgeable(content)
    return Row(str(problem), completion, answer, finished)


def _stored(path: str, seen: dict[tuple[str, int], str]) -> list[Row]:
    """Return the rows of a trajectory file; `seen` maps (problem, sample) to the file that holds it."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from rloop_core.trajectories.schema import check_schema

    try:
        check_schema(path)
        records = pq.read_table(path, columns=_COLUMNS).to_pylist()
    except (OSError, pa.ArrowException, RLoopError) as error:
        fix = "name samples of `rloop evaluate`, or JSON lines"
        raise ProblemsError(f"cannot be read: {str(error)[:200]}", field=path, fix=fix) from error
    for row in records:
        key = (row["problem_id"], row["sample"])
        if key in seen:
            what = f"holds sample {key[1]} of problem {key[0]}, as {seen[key]} does"
            fix = "name the samples of one policy, each shard once"
            raise ProblemsError(what, field=path, fix=fix)
        seen[key] = path
    return [Row(row["problem_id"], row["completion"], row["gold"], row["finished"]) for row in records]
