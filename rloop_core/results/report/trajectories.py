"""Trajectories of a run: samples for the reader, the keys of its expert sets, and the record of one rollout."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from rloop_core.errors import ConfigError, StageError
from rloop_core.results.run_reader import RunRecord, sample_files
from rloop_core.trajectories import EXPERTS_FILE, SNAPSHOT_RANK, TRAJECTORIES_FOLDER
from rloop_core.trajectories.schema import TRAJECTORY_SCHEMA, check_schema
from rloop_core.trajectories.shards import ShardName
from rloop_core.trajectories.success import CORRECT

KEY_COLUMNS = ("run", "iteration", "step", "rank", "attempt", "group_id", "sample", "problem_id")
EXPERTS_NAME = "experts.csv"
KEY_FORM = "ITERATION/STEP/RANK/ATTEMPT/GROUP/SAMPLE"
SHOWN_CHARACTERS = 4_000
_SCANNED_ROWS = 4_096
_SAMPLE_COLUMNS = ["problem_id", "prompt", "completion", "answer", "gold", "verdict", "length", "step", "rank",
                   "attempt", "group_id", "sample"]  # fmt: skip


@dataclass(frozen=True)
class Sample:
    """One trajectory to show.

    Attributes:
        origin: The policy and set, or the expert set, that it comes from.
        verdict: Its verdict.
        prompt, completion, answer, gold: Model output and problem text: hostile, to be escaped.
        length: Completion tokens.
        cut: Characters of the completion that are not shown.
        key: `step/rank/attempt/group/sample`, its key within its iteration.
    """

    origin: str
    verdict: str
    problem_id: str
    prompt: str
    completion: str
    answer: str | None
    gold: str
    length: int
    cut: int
    key: str


def sample_trajectories(run: RunRecord, each: int = 2) -> list[Sample]:
    """Return evaluation samples of the last policy, `each` of every verdict and set, and twice as many experts."""
    last = {stage: iteration for iteration, stage in sorted(run.manifests)}
    sources: list[tuple[str, list[Path], int]] = []
    if (iteration := last.get("evaluate")) is not None:
        for problem_set in run.config.evaluate.sets:
            files = sample_files(run, iteration, problem_set.label)
            sources.append((f"{run.policy_name(iteration)} on {problem_set.label}", files, each))
    if (iteration := last.get("filter")) is not None:
        files = run.files(iteration, "filter", EXPERTS_FILE)
        sources.append((f"expert set of iteration {iteration}", files, 2 * each))
    samples: list[Sample] = []
    for origin, files, count in sources:
        samples += run.read(f"{origin}: samples", partial(_of_each_verdict, files, origin, count), [])
    return samples


def samples_of(
    files: Sequence[Path], problem_ids: Collection[str], origin: str, each: int = 2, characters: int = SHOWN_CHARACTERS
) -> dict[str, list[Sample]]:
    """Return at most `each` samples of every problem: the first correct and the first other one, then the next.

    Raises:
        StageError, OSError, ValueError: A file is not of the trajectory schema, or cannot be read.
    """
    first: dict[str, dict[bool, list[Sample]]] = {problem: {True: [], False: []} for problem in problem_ids}
    for path in files:
        check_schema(path)
        for row in _rows([path], problem_ids):
            samples = first[row["problem_id"]][row["verdict"] == CORRECT]
            if len(samples) < each:
                samples.append(_sample(row, origin, characters))
    shown = {}
    for problem, by_correct in first.items():
        correct, other = by_correct[True], by_correct[False]
        shown[problem] = [*correct[: each - min(len(other), each // 2)], *other][:each]
    return shown


def _of_each_verdict(files: Sequence[Path], origin: str, each: int) -> list[Sample]:
    """Return the first samples of each verdict, of different problems, among the first rows."""
    by_verdict: dict[str, dict[str, Sample]] = {}
    for index, row in enumerate(_rows(files)):
        samples = by_verdict.setdefault(row["verdict"], {})
        if len(samples) < each and row["problem_id"] not in samples:
            samples[row["problem_id"]] = _sample(row, origin, SHOWN_CHARACTERS)
        if index + 1 >= _SCANNED_ROWS:
            break
    return [sample for verdict in sorted(by_verdict) for sample in by_verdict[verdict].values()]


def batches_of(
    files: Sequence[Path], columns: Sequence[str], rows: int, problem_ids: Collection[str] | None = None
) -> Iterator[Any]:
    """Yield Arrow record batches of parquet files, at most `rows` at a time; only those of `problem_ids` if given."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    wanted = None if problem_ids is None else pa.array(sorted(problem_ids), pa.string())
    for path in files:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=rows, columns=list(columns)):
                yield batch if wanted is None else batch.filter(pc.is_in(batch["problem_id"], value_set=wanted))


def _rows(files: Sequence[Path], problem_ids: Collection[str] | None = None) -> Iterator[dict[str, Any]]:
    """Yield rows one at a time, only those of `problem_ids` if given."""
    for batch in batches_of(files, _SAMPLE_COLUMNS, 512, problem_ids):
        yield from batch.to_pylist()


def _sample(row: dict[str, Any], origin: str, characters: int) -> Sample:
    text = row["completion"]
    return Sample(
        origin=origin,
        verdict=row["verdict"],
        problem_id=row["problem_id"],
        prompt=row["prompt"][:characters],
        completion=text[:characters],
        answer=row["answer"],
        gold=row["gold"],
        length=row["length"],
        cut=max(0, len(text) - characters),
        key="/".join(str(row[name]) for name in ("step", "rank", "attempt", "group_id", "sample")),
    )


def expert_keys(run: RunRecord, iteration: int) -> Iterator[Any]:
    """Yield the keys of an iteration's expert set as Arrow record batches with the columns `KEY_COLUMNS`."""
    for path in run.files(iteration, "filter", EXPERTS_FILE):
        check_schema(path)
        yield from batches_of([path], KEY_COLUMNS, 8_192)


def count_experts(run: RunRecord, iteration: int) -> dict[str, int] | None:
    """Return counts of an iteration's expert set; None, with a note, if it cannot be read.

    ``{trajectories, problems, groups, first_step, last_step (RL steps; 0 if there is none), from_snapshots}``: the last
    is the number of trajectories that harvest sampled from snapshots, after the RL steps.
    """
    if run.manifest(iteration, "filter") is None:
        return None

    def read() -> dict[str, int] | None:
        distinct: dict[str, set[Any]] = {"problem_id": set(), "group_id": set(), "step": set()}
        trajectories = from_snapshots = 0
        for batch in expert_keys(run, iteration):
            trajectories += batch.num_rows
            for name, values in distinct.items():
                values.update(batch[name].to_pylist())
            from_snapshots += sum(rank >= SNAPSHOT_RANK for rank in batch["rank"].to_pylist())
        return {
            "trajectories": trajectories,
            "problems": len(distinct["problem_id"]),
            "groups": len(distinct["group_id"]),
            "first_step": min(distinct["step"], default=0),
            "last_step": max(distinct["step"], default=0),
            "from_snapshots": from_snapshots,
        }

    return run.read(f"expert set of iteration {iteration}", read, None)


def write_expert_keys(runs: Iterable[RunRecord], path: Path) -> None:
    """Write the key of every expert trajectory of every iteration as CSV, a batch at a time."""
    import pyarrow as pa
    from pyarrow import csv

    schema = pa.schema([pa.field(name, TRAJECTORY_SCHEMA.field(name).type) for name in KEY_COLUMNS])

    def write(run: RunRecord, iteration: int) -> None:
        for batch in expert_keys(run, iteration):
            writer.write_batch(pa.RecordBatch.from_arrays([batch[name] for name in KEY_COLUMNS], schema=schema))

    with csv.CSVWriter(path, schema) as writer:
        for run in runs:
            for iteration in run.iterations:
                run.read(f"expert set of iteration {iteration}", partial(write, run, iteration), None)


class RolloutKey(NamedTuple):
    """The key of a rollout, unique within its run."""

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
        """Raise ConfigError if `text` is not iteration/step/rank/attempt/group/sample."""
        try:
            iteration, step, rank, attempt, rest = text.split("/", 4)
            group, sample = rest.rsplit("/", 1)
            return cls(int(iteration), int(step), int(rank), int(attempt), group, int(sample))
        except ValueError as error:
            raise ConfigError(
                f"{text!r} is not the key of a rollout", field="rollout", fix=f"use {KEY_FORM}"
            ) from error


def find_rollout(run: RunRecord, key: RolloutKey) -> dict[str, Any]:
    """Return a rollout's record in the store.

    Args:
        run: The run.
        key: Its key, from a row of `experts.csv`.

    Returns:
        ``{"file": uri of harvest's file, "shard": uri of explore's file or None, "record": {...}}``; the record has
        the columns of the trajectory schema. There is no shard if harvest sampled the rollout from a snapshot.

    Raises:
        StageError: There is no harvest artifact, or not exactly one such rollout in it.
    """
    import pyarrow.parquet as pq

    manifest = run.manifest(key.iteration, "harvest")
    if manifest is None:
        raise StageError(
            f"iteration {key.iteration} has no harvest artifact", field=run.name, fix="look at experts.csv"
        )
    filters = [(name, "=", value) for name, value in key._asdict().items()]
    matches = []
    for path in run.files(key.iteration, "harvest", f"{TRAJECTORIES_FOLDER}/"):
        check_schema(path)
        uri = run.store.uri_of(f"{manifest.folder}/{TRAJECTORIES_FOLDER}/{path.name}")
        matches += [(uri, row) for row in pq.read_table(path, filters=filters).to_pylist()]
    if len(matches) != 1:
        raise StageError(
            f"{len(matches) or 'none'} of the rollouts have the key {key}", field=run.name,
            fix=f"give it as {KEY_FORM}, as experts.csv has it",
        )  # fmt: skip
    uri, record = matches[0]
    explored = run.manifest(key.iteration, "explore")
    name = f"shards/{ShardName(key.step, key.rank, None).format()}"
    recorded = explored is not None and any(entry.path == name for entry in explored.files)
    shard = run.store.uri_of(f"{explored.folder}/{name}") if explored and recorded else None
    return {"file": uri, "shard": shard, "record": record}
