"""Trajectory shards: what one rank writes for one RL step, kept apart by attempt, and sealed when the phase
is over.

A phase that is killed resumes at its last checkpoint and explores some RL steps again. Each process start
writes under a new attempt number, so nothing is ever overwritten; of one (step, rank) the last attempt wins.
Sealing forgets the attempts, so the sealed artifact of a killed run equals, byte for byte, that of a run
never killed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rloop_core.errors import StageError
from rloop_core.trajectories.parquet import DeterministicWriter, canonical_rows, gather_rows
from rloop_core.trajectories.schema import CANONICAL_ORDER, TRAJECTORY_SCHEMA, check_schema, to_table

_NAME = re.compile(r"step-(\d{6,})\.rank-(\d{2,})(?:\.attempt-(\d{3,}))?\.parquet")


@dataclass(frozen=True, slots=True)
class ShardName:
    """``step-000012.rank-00.attempt-001.parquet``; a sealed shard has no attempt:
    ``step-000012.rank-00.parquet``."""

    step: int
    rank: int
    attempt: int | None

    def format(self) -> str:
        """The file name."""
        attempt = "" if self.attempt is None else f".attempt-{self.attempt:03d}"
        return f"step-{self.step:06d}.rank-{self.rank:02d}{attempt}.parquet"

    @classmethod
    def parse(cls, name: str) -> ShardName:
        """Raises StageError when ``name`` is not exactly a shard's name."""
        match = _NAME.fullmatch(name)
        parsed = match and cls(int(match[1]), int(match[2]), None if match[3] is None else int(match[3]))
        if not parsed or parsed.format() != name:
            raise StageError(f"{name!r} is not the name of a trajectory shard", field="trajectories")
        return parsed


def write_shard(directory: str | Path, step: int, rank: int, attempt: int, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Write the rollouts of one rank in one RL step; the file exists, complete and synced, once this returns.

    Raises:
        StageError: rows off the schema, or whose step, rank or attempt are not the shard's.
    """
    table = to_table(rows)
    for column, value in (("step", step), ("rank", rank), ("attempt", attempt)):
        others = set(table[column].to_pylist()) - {value}
        if others:
            raise StageError(
                f"the shard of {column} {value} was given rows of {column} {min(others)}",
                field="trajectories",
            )
    path = Path(directory) / ShardName(step, rank, attempt).format()
    with DeterministicWriter(path, TRAJECTORY_SCHEMA) as writer:
        writer.write(table)
    return path


def winning_shards(directory_or_names: str | Path | Iterable[str | Path]) -> dict[tuple[int, int], Path]:
    """The shard with the highest attempt of every (step, rank), in order of (step, rank).

    Takes a directory or an iterable of names or paths. Anything that is not named as a shard is ignored,
    half-written temporary files among it; a sealed shard counts as an attempt below all others.
    """
    if isinstance(directory_or_names, str | Path):
        directory = Path(directory_or_names)
        if not directory.is_dir():
            raise StageError(f"no such directory: {directory}", field="trajectories")
        candidates = sorted(directory.iterdir())
    else:
        candidates = [Path(name) for name in directory_or_names]
    best: dict[tuple[int, int], tuple[int, Path]] = {}
    for path in candidates:
        try:
            name = ShardName.parse(path.name)
        except StageError:
            continue
        key, attempt = (name.step, name.rank), -1 if name.attempt is None else name.attempt
        if key not in best or attempt > best[key][0]:
            best[key] = (attempt, path)
    return {key: best[key][1] for key in sorted(best)}


def seal_shards(
    directory: str | Path, out_dir: str | Path, *, steps: int | None = None, ranks: int | None = None
) -> list[Path]:
    """Write the winning shards of ``directory`` to ``out_dir``, without their attempts, one file at a time.

    Rows go out in canonical order with ``attempt`` set to 0, so the result depends on the rollouts alone.
    Given ``steps`` and ``ranks``, exactly RL steps 1..steps of ranks 0..ranks-1 must be there. Leftovers of
    an interrupted sealing in ``out_dir`` (temporary files, sealed shards of other steps) are removed. Returns
    the paths in order.

    Raises:
        StageError: no shards, a missing or unexpected (step, rank), or a file that is not of the trajectory
            schema.
    """
    winners = winning_shards(directory)
    if not winners:
        raise StageError(f"no trajectory shards in {directory}", field="trajectories")
    if steps is not None and ranks is not None:
        expected = {(step, rank) for step in range(1, steps + 1) for rank in range(ranks)}
        for what, keys in (("missing", expected - winners.keys()), ("unexpected", winners.keys() - expected)):
            if keys:
                first = ", ".join(f"(step {s}, rank {r})" for s, r in sorted(keys)[:5])
                raise StageError(f"{len(keys)} {what} shard(s) in {directory}: {first}", field="trajectories")
    out = Path(out_dir)
    out.mkdir(parents=True, exist_ok=True)
    targets = {key: out / ShardName(*key, attempt=None).format() for key in winners}
    for leftover in out.iterdir():
        if leftover.name.endswith(".parquet.tmp") or (
            _NAME.fullmatch(leftover.name) and leftover not in targets.values()
        ):
            leftover.unlink()
    for key, source in winners.items():
        _seal(source, targets[key])
    return list(targets.values())


def _seal(source: Path, target: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    check_schema(source)
    order = canonical_rows(pq.read_table(source, columns=list(CANONICAL_ORDER)), CANONICAL_ORDER)
    index = TRAJECTORY_SCHEMA.get_field_index("attempt")
    with DeterministicWriter(target, TRAJECTORY_SCHEMA) as writer:
        for table in gather_rows(source, order):
            zeros = pa.array([0] * table.num_rows, type=pa.int32())
            writer.write(table.set_column(index, TRAJECTORY_SCHEMA.field("attempt"), zeros))
