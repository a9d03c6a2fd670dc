"""Trajectories of a run for the reader: samples of every verdict, and stored rows in batches."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rloop_core.results.run_reader import RunRecord, sample_files
from rloop_core.trajectories import EXPERTS_FILE

_SHOWN_CHARACTERS = 4_000
_SCANNED_ROWS = 4_096
_COLUMNS = ("problem_id", "prompt", "completion", "answer", "gold", "verdict", "length")


@dataclass(frozen=True)
class Sample:
    """One trajectory to show; its texts are hostile, to be escaped."""

    origin: str
    """The policy and set, or the expert set, that it comes from."""
    verdict: str
    problem_id: str
    prompt: str
    completion: str
    answer: str | None
    gold: str
    length: int
    """Completion tokens."""
    cut: int
    """Characters of the completion that are not shown."""


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


def _of_each_verdict(files: Sequence[Path], origin: str, each: int) -> list[Sample]:
    """Return the first samples of each verdict, of different problems, among the first rows."""
    by_verdict: dict[str, dict[str, Sample]] = {}
    rows = (row for batch in batches_of(files, _COLUMNS, 512) for row in batch.to_pylist())
    for index, row in enumerate(rows):
        samples = by_verdict.setdefault(row["verdict"], {})
        if len(samples) < each and row["problem_id"] not in samples:
            samples[row["problem_id"]] = _sample(row, origin)
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


def _sample(row: dict[str, Any], origin: str) -> Sample:
    text, kept = row["completion"], ("verdict", "problem_id", "answer", "gold", "length")
    return Sample(
        origin=origin,
        prompt=row["prompt"][:_SHOWN_CHARACTERS],
        completion=text[:_SHOWN_CHARACTERS],
        cut=max(0, len(text) - _SHOWN_CHARACTERS),
        **{name: row[name] for name in kept},
    )
