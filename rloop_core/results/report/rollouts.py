"""The rollouts that went into a run's policies: the key of every expert trajectory, and a key's record in the store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from rloop_core.errors import ConfigError, StageError
from rloop_core.results.report.reading import RunRecord
from rloop_core.trajectories import EXPERTS_FILE, SNAPSHOT_RANK, TRAJECTORIES_FOLDER
from rloop_core.trajectories.schema import TRAJECTORY_SCHEMA, check_schema
from rloop_core.trajectories.shards import ShardName

KEY_COLUMNS = ("run", "iteration", "step", "rank", "attempt", "group_id", "sample", "problem_id")
EXPERTS_NAME = "experts.csv"
KEY_FORM = "ITERATION/STEP/RANK/ATTEMPT/GROUP/SAMPLE"
_BATCH_ROWS = 8_192


class RolloutKey(NamedTuple):
    """What tells a rollout of a run from every other."""

    iteration: int
    step: int
    rank: int
    attempt: int
    group_id: str
    sample: int

    def __str__(self) -> str:
        return "/".join(map(str, self))

    @classmethod
    def parse(cls, text: str) -> RolloutKey:
        """Raises ConfigError when `text` is not iteration/step/rank/attempt/group/sample."""
        try:
            iteration, step, rank, attempt, rest = text.split("/", 4)
            group, sample = rest.rsplit("/", 1)
            return cls(int(iteration), int(step), int(rank), int(attempt), group, int(sample))
        except ValueError as error:
            raise ConfigError(
                f"{text!r} is not the key of a rollout", field="rollout", fix=f"use {KEY_FORM}"
            ) from error


@dataclass(frozen=True)
class ExpertKeys:
    """What an expert set was drawn from.

    Attributes:
        trajectories, problems, groups: How many, and of how many problems and groups.
        first_step, last_step: RL steps of the first and of the last one; 0 when there is none.
        from_snapshots: How many harvest sampled from snapshots, after the RL steps.
    """

    trajectories: int
    problems: int
    groups: int
    first_step: int
    last_step: int
    from_snapshots: int


def expert_keys(run: RunRecord, iteration: int) -> Iterator[Any]:
    """The keys of an iteration's expert set as Arrow record batches with the columns `KEY_COLUMNS`."""
    import pyarrow.parquet as pq

    for path in run.files(iteration, "filter", EXPERTS_FILE):
        check_schema(path)
        with pq.ParquetFile(path) as file:
            yield from file.iter_batches(batch_size=_BATCH_ROWS, columns=list(KEY_COLUMNS))


def count_experts(run: RunRecord, iteration: int) -> ExpertKeys | None:
    """What an iteration's expert set was drawn from; None, with a note, where it cannot be read."""
    if run.manifest(iteration, "filter") is None:
        return None

    def read() -> ExpertKeys:
        problems: set[str] = set()
        groups: set[str] = set()
        steps: set[int] = set()
        rows = late = 0
        for batch in expert_keys(run, iteration):
            rows += batch.num_rows
            problems.update(batch["problem_id"].to_pylist())
            groups.update(batch["group_id"].to_pylist())
            steps.update(batch["step"].to_pylist())
            late += sum(rank >= SNAPSHOT_RANK for rank in batch["rank"].to_pylist())
        return ExpertKeys(rows, len(problems), len(groups), min(steps, default=0), max(steps, default=0), late)

    return run.read(f"expert set of iteration {iteration}", read, None)


def write_expert_keys(runs: Iterable[RunRecord], path: Path) -> int:
    """Write the key of every expert trajectory of every iteration as CSV, a batch at a time; returns their number."""
    import pyarrow as pa
    from pyarrow import csv

    schema = pa.schema([pa.field(name, TRAJECTORY_SCHEMA.field(name).type) for name in KEY_COLUMNS])
    rows = 0

    def write(run: RunRecord, iteration: int) -> int:
        count = 0
        for batch in expert_keys(run, iteration):
            writer.write_batch(pa.RecordBatch.from_arrays([batch[name] for name in KEY_COLUMNS], schema=schema))
            count += batch.num_rows
        return count

    with csv.CSVWriter(path, schema) as writer:
        for run in runs:
            for iteration in run.iterations:
                rows += run.read(f"expert set of iteration {iteration}", partial(write, run, iteration), 0)
    return rows


def find_rollout(run: RunRecord, key: RolloutKey) -> dict[str, Any]:
    """A rollout's record in the store.

    Args:
        run: The run.
        key: Its key, such as a row of `experts.csv` gives.

    Returns:
        ``{"file": uri of harvest's file, "shard": uri of explore's file or None, "record": {...}}``; the record has
        the columns of the trajectory schema.

    Raises:
        StageError: There is no harvest artifact, or not exactly one such rollout in it.
    """
    import pyarrow.parquet as pq

    manifest = run.manifest(key.iteration, "harvest")
    if manifest is None:
        raise StageError(
            f"iteration {key.iteration} has no harvest artifact", field=run.name, fix="look at experts.csv"
        )
    wanted = [(name, "=", value) for name, value in key._asdict().items()]
    found = []
    for path in run.files(key.iteration, "harvest", f"{TRAJECTORIES_FOLDER}/"):
        check_schema(path)
        uri = run.store.uri_of(f"{manifest.folder}/{TRAJECTORIES_FOLDER}/{path.name}")
        found += [(uri, row) for row in pq.read_table(path, filters=wanted).to_pylist()]
    if len(found) != 1:
        raise StageError(
            f"{len(found) or 'none'} of the rollouts have the key {key}", field=run.name,
            fix=f"give it as {KEY_FORM}, as experts.csv has it",
        )  # fmt: skip
    uri, record = found[0]
    return {"file": uri, "shard": _shard(run, key), "record": record}


def _shard(run: RunRecord, key: RolloutKey) -> str | None:
    """Where explore wrote the rollout first; None for one that harvest sampled from a snapshot."""
    manifest = run.manifest(key.iteration, "explore")
    name = f"shards/{ShardName(key.step, key.rank, None).format()}"
    if manifest is None or all(entry.path != name for entry in manifest.files):
        return None
    return run.store.uri_of(f"{manifest.folder}/{name}")
