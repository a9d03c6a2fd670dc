"""Stages that are killed, lose their engine or find no memory: each fails with one clear sentence, and resumes."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.gpu.bench import Bench, Line, Part
from benchmarks.gpu.device import TOLERANCE, device_bytes, has_vllm, settled_bytes
from benchmarks.gpu.iteration import iteration_config
from benchmarks.gpu.policy import HALF
from benchmarks.gpu.processes import StageKiller, memory_taken, stage_runner
from rloop_core.config import Config
from rloop_core.errors import StageCrashed, StageError
from rloop_core.stages.process import start_fork_server
from rloop_core.store import Manifest

_KEY = ("step", "rank", "group_id", "sample")
_SHARDS = {"explore": "shards", "evaluate": "set-00"}
"""Folder of a stage's shards in its artifact."""
Rows = dict[tuple[Any, ...], dict[str, Any]]
"""Trajectories by `_KEY`."""


def run(bench: Bench) -> None:
    """Kill explore and evaluate, fill the device, then run both undisturbed and compare."""
    start_fork_server()
    config = _config(bench, "killed")
    explored = _kill_explore(bench, config)
    evaluated = _kill_evaluate(bench, config)
    _out_of_memory(bench)
    undisturbed = _config(bench, "whole")
    rounding = "vLLM promises no equal completions in other batches" if bench.in_loop_vllm else ""
    _compare(bench, undisturbed, *explored, 0, rounding)
    rounding = "each sequence has a seed of its own; rounding may differ by batch" if has_vllm() else ""
    _compare(bench, undisturbed, *evaluated, -1, rounding)


def _config(bench: Bench, store: str, changes: Mapping[str, Any] | None = None) -> Config:
    shared = {
        "name": "faults",
        "explore.steps": 4,
        "placement.checkpoint_every": 1,
        "placement.generation_batch": 8 if bench.small else 32,
    }
    full = {
        "explore.problems_per_step": 8,
        "explore.mini_batch_rollouts": 64,
        "explore.max_completion_tokens": 128,
        "explore.learning_rate": 1e-5,
        "evaluate.samples": 16,
        "evaluate.max_completion_tokens": 256,
    }
    changes = {**shared, **(changes or {})}
    return iteration_config(bench, "qwen2.5-0.5b.yaml", HALF, changes, full=full, store=f"store-{store}")


def _kill_explore(bench: Bench, config: Config) -> tuple[Manifest, Rows]:
    reason = _kill(bench, config, "explore", 0, 2)
    before = _by_key(_read(_scratch_files(config, "explore", "shards")))
    with stage_runner(config) as runner:
        manifest = runner.ensure("explore", 0).manifest
        harvested = runner.ensure("harvest", 0).manifest
        after = _read(runner.store.local_path(f"{manifest.folder}/shards"))
    # The last step may have been recorded before its checkpoint was: such a step is sampled again.
    last = max(int(key[0]) for key in before)
    settled = {key: row for key, row in before.items() if key[0] < last}
    measured, whole = _compare_rows("rollouts", settled, after, int(manifest.counts["rollouts"]))
    measured += f" changed; harvest proves {harvested.counts['trajectories']} complete"
    why = f"{bench.engines['explore.engine']}: {reason or 'it did not fail'}"
    bench.judge("explore", whole and bool(reason), measured, why)
    return manifest, _by_key(after)


def _kill_evaluate(bench: Bench, config: Config) -> tuple[Manifest, Rows]:
    if has_vllm():
        reason = _kill(bench, config, "evaluate", -1, 0.2, lambda command: "VLLM" in command)
        kept = f"{len(_scratch_files(config, 'evaluate', 'samples'))} batches kept"
        bench.judge("engine", bool(reason), kept, reason or "it did not fail")
    else:
        bench.leave_out("transformers draws in the stage's own process; vLLM is not installed", "engine")
    reason = _kill(bench, config, "evaluate", -1, 0.5)
    before = _by_key(_read(_scratch_files(config, "evaluate", "samples")))
    with stage_runner(config) as runner:
        manifest = runner.ensure("evaluate", -1).manifest
        after = _read(runner.store.local_path(f"{manifest.folder}/set-00"))
    counts = manifest.counts["held-out"]
    measured, whole = _compare_rows("samples", before, after, counts["problems"] * counts["samples"])
    measured += f" of {len(before)} kept ones changed"
    why = f"{bench.engines['placement.engine']}: {reason or 'it did not fail'}"
    bench.judge("evaluate", whole and bool(reason), measured, why)
    return manifest, _by_key(after)


def _compare_rows(name: str, before: Rows, after: list[dict[str, Any]], wanted: int) -> tuple[str, bool]:
    """Return figures in words, and whether no row of a killed stage was lost, changed or doubled."""
    rows = _by_key(after)
    doubled = len(after) - len(rows)
    changed = sum(rows.get(key) != row for key, row in before.items())
    whole = bool(before) and not doubled and not changed and len(after) == wanted
    return f"{len(after)} {name} of {wanted}, {doubled} doubled, {changed}", whole


def _compare(
    bench: Bench, undisturbed: Config, manifest: Manifest, resumed: Rows, iteration: int, rounding: str
) -> None:
    """Compare with an undisturbed stage; `rounding` says why they need not be equal, if they need not."""
    stage = manifest.stage
    with stage_runner(undisturbed) as runner:
        other = runner.ensure(stage, iteration).manifest
        rows = _by_key(_read(runner.store.local_path(f"{other.folder}/{_SHARDS[stage]}")))
    sampled = ("problem_id", "completion_ids")
    same = sum(all(resumed[key][name] == row[name] for name in sampled) for key, row in rows.items() if key in resumed)
    equal = manifest.digest == other.digest
    measured = "equal, digest for digest" if equal else f"{same} of {len(rows)} completions equal, digests differ"
    if rounding:
        bench.show(f"{stage}-equality", measured, rounding)
    else:
        bench.judge(f"{stage}-equality", equal, measured)


def _out_of_memory(bench: Bench) -> None:
    changes: dict[str, Any] = {"explore.engine": "transformers", "explore.steps": 1}
    if bench.small:
        changes |= {"explore.group_size": 32, "explore.problems_per_step": 16, "explore.mini_batch_rollouts": 512}
        changes |= {"placement.micro_batch_tokens": 65536, "placement.generation_batch": 512}
    config = _config(bench, "starved", changes)
    reason = ""
    with memory_taken(bench.device, 2**30), stage_runner(config) as runner:
        try:
            runner.ensure("explore", 0)
        except StageError as error:
            reason = str(error)
    with stage_runner(config) as runner:
        steps = runner.ensure("explore", 0).manifest.counts["steps"]
    met = "out of memory" in reason and steps == 1
    bench.judge("memory", met, f"started again with room: {steps} of 1 RL step", reason or "it did not fail")


def _kill(
    bench: Bench, config: Config, stage: str, iteration: int, after: float, chosen: Callable[[str], bool] | None = None
) -> str | None:
    """Kill a stage and return its error in one sentence; None if it did not fail, or with another error.

    Waits until the GPU has its memory back: an engine that starts too early finds it full.
    """
    idle = device_bytes(bench.device)
    killer = StageKiller(stage, after, chosen)
    with stage_runner(config, killer) as runner:
        try:
            runner.ensure(stage, iteration)
        except StageCrashed as error:
            if bench.device == "cuda":
                settled_bytes(bench.device, idle + TOLERANCE, patience=20.0)
            return str(error).partition("; its log ends")[0] if killer.killed else None
    return None


def _scratch_files(config: Config, stage: str, folder: str) -> list[Path]:
    """Return the shards that a killed stage has left."""
    root = Path(config.placement.store) / f".scratch-{os.geteuid()}" / config.name
    return sorted(root.glob(f"*/{stage}/*/{folder}/**/*.parquet"))


def _read(files: Path | list[Path]) -> list[dict[str, Any]]:
    import pyarrow.parquet as pq

    columns = [*_KEY, "problem_id", "completion_ids", "verdict", "reward", "logprob_sum"]
    paths = sorted(files.glob("**/*.parquet")) if isinstance(files, Path) else files
    return [row for path in paths for row in pq.read_table(path, columns=columns).to_pylist()]


def _by_key(rows: list[dict[str, Any]]) -> Rows:
    return {tuple(row[name] for name in _KEY): row for row in rows}


PART = Part(
    "faults",
    "kill -9 of explore and evaluate, of vLLM's engine, and a full device: the reason told, and what is resumed",
    "9 min; 2 min",
    (
        Line("explore", "explore killed at RL step 2 and resumed", "a reason; no rollout lost, changed or doubled"),
        Line("explore-equality", "resumed explore beside one undisturbed", "equal, but for vLLM's"),
        Line("engine", "vLLM's engine killed in evaluate", "a reason; resumed below"),
        Line("evaluate", "evaluate killed half-way and resumed", "a reason; no sample lost, changed or doubled"),
        Line("evaluate-equality", "resumed evaluate beside one undisturbed", "equal, but for vLLM's"),
        Line("memory", "explore on a device that another process has filled", "out of memory, said so; resumed"),
    ),
    run,
)
