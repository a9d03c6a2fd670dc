"""Filter against pandas reading whole files: seconds and peak memory of each, in child processes, side by
side.

    python benchmarks/filter.py [--rows 1000000]

Both make the expert set of the same synthetic record (zstd shards of 5,000 rollouts, 16 a group, problems of
very different difficulty) under the paper's settings; the sizes of the two sets are compared.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SHARD_ROWS = 5000
GROUP = 16


def make_record(directory: Path, rows: int) -> None:
    """Shards of the trajectory schema; about 190 rollouts a problem, as in a phase of the paper."""
    import numpy as np
    import pyarrow as pa

    from rloop_core.trajectories.parquet import DeterministicWriter
    from rloop_core.trajectories.schema import TRAJECTORY_SCHEMA

    generator = np.random.default_rng(0)
    problems = max(1, rows // 192)
    chance = generator.beta(0.25, 0.6, problems)
    # Completions are cut from one long random text, longer than the compressor's window: distinct, and quick
    # to make.
    letters = np.frombuffer(b"0123456789+-=() \n", dtype=np.uint8)
    text = generator.choice(letters, 16_000_000).tobytes().decode()
    for start in range(0, rows, SHARD_ROWS):
        count = min(SHARD_ROWS, rows - start)
        group = (start + np.arange(count)) // GROUP
        problem = group % problems
        correct = generator.random(count) < chance[problem]
        finished = correct | (generator.random(count) > 0.1)
        length = generator.integers(50, 250, count)
        tokens = generator.integers(0, 2000, int(length.sum()), dtype=np.int32)
        offsets = np.concatenate([[0], np.cumsum(length)]).astype(np.int32)
        step = start // SHARD_ROWS + 1
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


def run_filter(directory: Path) -> int:
    from rloop_core.config import FilterConfig
    from rloop_core.trajectories.filter import filter_experts

    with tempfile.TemporaryDirectory() as out:
        paths = sorted(directory.glob("*.parquet"))
        return filter_experts(paths, FilterConfig(), Path(out, "expert.parquet")).trajectories


def run_pandas(directory: Path) -> int:
    import pandas as pd

    frame = pd.concat([pd.read_parquet(path) for path in sorted(directory.glob("*.parquet"))], ignore_index=True)
    frame["correct"] = frame["verdict"] == "correct"
    rate = frame.groupby("problem_id")["correct"].transform("mean")
    left = frame[frame["correct"] & (rate > 0) & (rate < 0.1) & frame["finished"] & (frame["boxes"] <= 1)].copy()
    left["ids"] = left["completion_ids"].map(lambda ids: ids.tobytes())
    left = left.sort_values(["step", "rank", "group_id", "sample"]).drop_duplicates(["problem_id", "ids"])
    left = left.sample(frac=1.0, random_state=0).groupby("problem_id").head(8)
    with tempfile.TemporaryDirectory() as out:
        left.drop(columns=["ids", "correct"]).to_parquet(Path(out, "expert.parquet"), compression="zstd")
    return len(left)


def child(which: str, directory: Path) -> None:
    """Run one of the two and print its figures; the imports count, as they do in a stage's process."""
    start = time.perf_counter()
    trajectories = {"rloop": run_filter, "pandas": run_pandas}[which](directory)
    seconds = time.perf_counter() - start
    usage = resource.getrusage(resource.RUSAGE_SELF)
    figures = {
        "trajectories": trajectories,
        "seconds": seconds,
        "cpu": usage.ru_utime + usage.ru_stime,
        "mib": usage.ru_maxrss / 1024,
    }
    print(json.dumps(figures))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=3, help="runs of each; the fastest counts")
    parser.add_argument("--child", choices=["rloop", "pandas"], help=argparse.SUPPRESS)
    parser.add_argument("--directory", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        return child(arguments.child, arguments.directory)
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        make_record(directory, arguments.rows)
        size = sum(path.stat().st_size for path in directory.iterdir()) / 1e6
        print(f"{arguments.rows:,} trajectories, {size:.0f} MB in {len(list(directory.iterdir()))} shards")
        print(f"{'':8} {'seconds':>8} {'CPU s':>8} {'peak MiB':>9} {'expert set':>11}")
        results = {}
        for which in ("rloop", "pandas"):
            command = [sys.executable, __file__, "--child", which, "--directory", name]
            runs = [
                json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
                for _ in range(arguments.repeats)
            ]
            best = results[which] = min(runs, key=lambda run: run["seconds"])
            peak = max(run["mib"] for run in runs)
            print(f"{which:8} {best['seconds']:8.2f} {best['cpu']:8.2f} {peak:9.0f} {best['trajectories']:11,}")
        ratio = results["pandas"]["seconds"] / results["rloop"]["seconds"]
        print(f"ratio    {ratio:8.1f}x faster (bar: 5x, and peak below 512 MiB)")


if __name__ == "__main__":
    main()
