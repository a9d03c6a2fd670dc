"""Trajectories of a run for the reader of its report."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rloop_core.results.run_reader import RunRecord, sample_files
from rloop_core.trajectories import EXPERTS_FILE

_ROWS = 4_096
_COLUMNS = ["problem_id", "prompt", "completion", "answer", "gold", "verdict", "length"]


def sample_trajectories(run: RunRecord, each: int = 2) -> list[dict[str, Any]]:
    """Return evaluation samples of the last policy, `each` of every verdict and set, and twice as many experts.

    A sample has the stored columns, and its `origin`. Its texts are hostile, to be escaped.
    """
    last = {stage: iteration for iteration, stage in sorted(run.manifests)}
    sources: list[tuple[str, list[Path], int]] = []
    if (iteration := last.get("evaluate")) is not None:
        for problem_set in run.config.evaluate.sets:
            files = sample_files(run, iteration, problem_set.label)
            sources.append((f"{run.policy_name(iteration)} on {problem_set.label}", files, each))
    if (iteration := last.get("filter")) is not None:
        files = run.files(iteration, "filter", EXPERTS_FILE)
        sources.append((f"expert set of iteration {iteration}", files, 2 * each))
    samples: list[dict[str, Any]] = []
    for origin, files, count in sources:
        samples += run.read(f"{origin}: samples", partial(_of_each_verdict, origin, files, count), [])
    return samples


def _of_each_verdict(origin: str, files: Sequence[Path], each: int) -> list[dict[str, Any]]:
    """Return the first samples of each verdict, of different problems, among the first rows of the first file."""
    import pyarrow.parquet as pq

    by_verdict: dict[str, dict[str, dict[str, Any]]] = {}
    for path in files[:1]:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(_ROWS, columns=_COLUMNS):
                for row in batch.to_pylist():
                    samples = by_verdict.setdefault(row["verdict"], {})
                    if len(samples) < each:
                        samples.setdefault(row["problem_id"], {"origin": origin, **row})
                break
    return [sample for verdict in sorted(by_verdict) for sample in by_verdict[verdict].values()]
