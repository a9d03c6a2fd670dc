"""Trajectories for the reader's eye: a few rows of a few problems, never chosen by hand, cut where they are long."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rloop_core.results.report.evaluation import sample_files
from rloop_core.results.report.reading import RunRecord
from rloop_core.trajectories import EXPERTS_FILE
from rloop_core.trajectories.schema import check_schema
from rloop_core.trajectories.success import CORRECT

SHOWN_CHARACTERS = 4_000
_SCANNED_ROWS = 4_096
_BATCH_ROWS = 512
_COLUMNS = ["problem_id", "prompt", "completion", "answer", "gold", "verdict", "length", "step", "rank", "attempt",
            "group_id", "sample"]  # fmt: skip


@dataclass(frozen=True)
class Sample:
    """One trajectory.

    Attributes:
        origin: Where it comes from.
        verdict: As judged.
        prompt, completion, answer, gold: Model output and problem text: hostile, to be escaped.
        length: Completion tokens.
        cut: Characters of the completion that are not shown.
        key: `step/rank/attempt/group/sample`, by which the store knows it within its iteration.
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
    """Some evaluation samples of the last policy, `each` of every verdict and set, and some of the expert set."""
    samples: list[Sample] = []
    evaluated = [iteration for iteration, stage in sorted(run.manifests) if stage == "evaluate"]
    for source in run.config.evaluate.sets if evaluated else ():
        files = sample_files(run, evaluated[-1], source.label)
        origin = f"{run.policy_name(evaluated[-1])} on {source.label}"
        samples += run.read(f"{origin}: samples", partial(_of_each_verdict, files, origin, each), [])
    filtered = [iteration for iteration, stage in sorted(run.manifests) if stage == "filter"]
    if filtered:
        files = run.files(filtered[-1], "filter", EXPERTS_FILE)
        origin = f"expert set of iteration {filtered[-1]}"
        samples += run.read(f"{origin}: samples", partial(_of_each_verdict, files, origin, 2 * each), [])
    return samples


def samples_of(
    files: Sequence[Path], problem_ids: Collection[str], origin: str, each: int = 2, characters: int = SHOWN_CHARACTERS
) -> dict[str, list[Sample]]:
    """At most `each` samples of every one of these problems: the first correct and the first other one, then the next.

    Raises:
        StageError, OSError, ValueError: A file is not of the trajectory schema, or cannot be read.
    """
    seen: dict[str, dict[bool, list[Sample]]] = {one: {True: [], False: []} for one in problem_ids}
    for path in files:
        check_schema(path)
        for row in _rows([path], problem_ids):
            alike = seen[row["problem_id"]][row["verdict"] == CORRECT]
            if len(alike) < each:
                alike.append(_sample(row, origin, characters))
    found = {}
    for problem, both in seen.items():
        right, other = both[True], both[False]
        few = [*right[: each - min(len(other), each // 2)], *other]
        found[problem] = few[:each]
    return found


def _of_each_verdict(files: Sequence[Path], origin: str, each: int) -> list[Sample]:
    """The first samples of each verdict, of different problems, among the first rows."""
    found: dict[str, dict[str, Sample]] = {}
    for place, row in enumerate(_rows(files)):
        of_verdict = found.setdefault(row["verdict"], {})
        if len(of_verdict) < each and row["problem_id"] not in of_verdict:
            of_verdict[row["problem_id"]] = _sample(row, origin, SHOWN_CHARACTERS)
        if place + 1 >= _SCANNED_ROWS:
            break
    return [sample for verdict in sorted(found) for sample in found[verdict].values()]


def _rows(files: Sequence[Path], problem_ids: Collection[str] | None = None) -> Iterator[dict[str, Any]]:
    """Rows one at a time; of these problems alone where they are given."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    wanted = None if problem_ids is None else pa.array(sorted(problem_ids), pa.string())
    for path in files:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=_BATCH_ROWS, columns=_COLUMNS):
                if wanted is not None:
                    batch = batch.filter(pc.is_in(batch["problem_id"], value_set=wanted))
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
