"""Filter against pandas reading whole files: seconds and peak memory of each, in processes of their own.

Both make the expert set of the same synthetic record under the paper's settings; imports count, as in a stage.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from benchmarks.measure import Result, measured

ROWS = 1_000_000
SHARD_ROWS = 5000
GROUP = 16
_ROUNDS = 3


def bench(rows: int = ROWS) -> list[Result]:
    """Compare the fastest of some rounds of each, and the most memory that rloop took."""
    with tempfile.TemporaryDirectory() as folder:
        make_record(Path(folder), rows)
        ours, pandas = (
            [measured(f"filter:{function}", folder) for _ in range(_ROUNDS)]
            for function in ("run_filter", "run_pandas")
        )
    best, reference = (min(rounds, key=lambda figures: figures["seconds"]) for rounds in (ours, pandas))
    peak, pandas_peak = (max(figures["peak_mib"] for figures in rounds) for rounds in (ours, pandas))
    detail = (
        f"{best['seconds']:.2f} s ({best['cpu']:.2f} s of processor) against {reference['seconds']:.2f} s; "
        f"{best['trajectories']:,} against {reference['trajectories']:,} experts of {rows:,} trajectories"
    )
    ratio = reference["seconds"] / best["seconds"]
    return [
        Result("filter: pandas on whole files / rloop", ratio, 5, "x", detail, at_least=True),
        Result("filter: peak memory", peak, 512, "MiB", f"pandas {pandas_peak:,.0f} MiB"),
    ]


def make_record(directory: Path, rows: int, shard_rows: int = SHARD_ROWS) -> None:
    """Write shards of the trajectory schema: about 190 rollouts a problem, as in a phase of the paper.

    Rollouts have 50 to 250 tokens, 16 of them a group; the problems differ much in difficulty.
    """
    import numpy as np
    import pyarrow as pa

    from rloop_core.trajectories.parquet import DeterministicWriter
    from rloop_core.trajectories.schema import TRAJECTORY_SCHEMA

    generator = np.random.default_rng(0)
    problems = max(1, rows // 192)
    chance = generator.beta(0.25, 0.6, problems)
    # Completions are slices of one random text longer than the compressor's window: distinct, and quick to make.
    letters = np.frombuffer(b"0123456789+-=() \n", dtype=np.uint8)
    text = generator.choice(letters, 16_000_000).tobytes().decode()
    for start in range(0, rows, shard_rows):
        count = min(shard_rows, rows - start)
        group = (start + np.arange(count)) // GROUP
        problem = group % problems
        correct = generator.random(count) < chance[problem]
        finished = correct | (generator.random(count) > 0.1)
        length = generator.integers(50, 250, count)
        tokens = generator.integers(0, 2000, int(length.sum()), dtype=np.int32)
        offsets = np.concatenate([[0], np.cumsum(length)]).astype(np.int32)
        step = start // shard_rows + 1
        prompt_ids = pa.ListArray.from_arrays(
            np.arange(0, 20 * count + 1, 20, dtype=np.int32), np.tile(np.arange(20, dtype=np.int32), count)
        )
        same = {"run": "bench", "iteration": 0, "step": step, "rank": 0, "attempt": 0, "gold": "1"}
        columns = {
            **{name: [value] * count for name, value in same.items()},
            "group_id": [f"{step}-{g}" for g in group],
            "sample": (start + np.arange(count)) % GROUP,
            "problem_id": [f"{p:016x}" for p in problem],
            "prompt": [f"What is {p} + {p}?\n" for p in problem],
            "completion": [
                text[at : at + 3 * size]
                for at, size in zip(generator.integers(0, 15_000_000, count), length, strict=True)
            ],
            "prompt_ids": prompt_ids,
            "completion_ids": pa.ListArray.from_arrays(offsets, tokens),
            "answer": [str(a) for a in generator.integers(0, 100, count)],
            "verdict": np.where(correct, "correct", np.where(finished, "wrong", "truncated")).tolist(),
            "reward": np.where(correct, 1.0, -1.0),
            "length": length,
            "finished": finished,
            "kept": np.ones(count, dtype=bool),
            "logprob_sum": -generator.random(count),
            "entropy_mean": generator.random(count),
            "boxes": generator.integers(0, 3, count),
            "policy_step": [step * 2] * count,
        }
        arrays = [pa.array(columns[field.name]).cast(field.type) for field in TRAJECTORY_SCHEMA]
        with DeterministicWriter(directory / f"step-{step:06d}.rank-00.parquet", TRAJECTORY_SCHEMA) as writer:
            writer.write(pa.Table.from_arrays(arrays, schema=TRAJECTORY_SCHEMA))


def run_filter(directory: str) -> dict[str, Any]:
    """Make the expert set with rloop."""
    from rloop_core.config import FilterConfig
    from rloop_core.trajectories.filter import filter_experts

    with tempfile.TemporaryDirectory() as out:
        paths = sorted(Path(directory).glob("*.parquet"))
        return {"trajectories": filter_experts(paths, FilterConfig(), Path(out, "expert.parquet")).trajectories}


def run_pandas(directory: str) -> dict[str, Any]:
    """Make the expert set with pandas."""
    import pandas as pd

    paths = sorted(Path(directory).glob("*.parquet"))
    frame = pd.concat([pd.read_parquet(path) for path in paths], ignore_index=True)
    frame["correct"] = frame["verdict"] == "correct"
    rate = frame.groupby("problem_id")["correct"].transform("mean")
    left = frame[frame["correct"] & (rate > 0) & (rate < 0.1) & frame["finished"] & (frame["boxes"] <= 1)].copy()
    left["ids"] = left["completion_ids"].map(lambda ids: ids.tobytes())
    left = left.sort_values(["step", "rank", "group_id", "sample"]).drop_duplicates(["problem_id", "ids"])
    left = left.sample(frac=1.0, random_state=0).groupby("problem_id").head(8)
    with tempfile.TemporaryDirectory() as out:
        left.drop(columns=["ids", "correct"]).to_parquet(Path(out, "expert.parquet"), compression="zstd")
    return {"trajectories": len(left)}
