"""Stages that are killed, lose their engine or find no memory: each fails with one clear sentence, and resumes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.gpu.check import Check, Line, Part
from benchmarks.gpu.device import TOLERANCE, device_bytes, has_vllm, settled_bytes
from benchmarks.gpu.policy import HALF, iteration_config
from benchmarks.gpu.processes import StageKiller, memory_taken, stage_runner
from rloop_core.config import Config
from rloop_core.errors import StageCrashed, StageError
from rloop_core.stages.process import start_fork_server


def run(check: Check) -> None:
    """Kill explore and evaluate's engine, and fill the device; start each again."""
    start_fork_server()
    config = _config(check, "killed")
    reason = _kill(check, config, "explore", 0, 2)
    counts, met = _resumed(config, "explore", 0, "shards")
    check.judge("explore", met and bool(reason), counts, f"{config.explore.engine}: {reason or 'it did not fail'}")
    if has_vllm():
        reason = _kill(check, config, "evaluate", -1, 0.2, lambda command: "VLLM" in command)
        counts, met = _resumed(config, "evaluate", -1, "set-00")
        check.judge("engine", met and bool(reason), counts, reason or "it did not fail")
    else:
        check.leave_out("transformers samples in the stage's own process; vLLM is not installed", "engine")
    _out_of_memory(check)


def _config(check: Check, store: str, changes: Mapping[str, Any] | None = None) -> Config:
    shared = {
        "name": "faults",
        "explore.steps": 4,
        "placement.checkpoint_every": 1,
        "placement.generation_batch": 8 if check.small else 32,
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
    return iteration_config(check, "qwen2.5-0.5b.yaml", HALF, changes, full=full, store=f"store-{store}")


def _kill(
    check: Check, config: Config, stage: str, iteration: int, after: float, chosen: Callable[[str], bool] | None = None
) -> str | None:
    """Kill a stage and return its error in one sentence; None if it did not fail, or with another error.

    Waits until the GPU has its memory back: an engine that starts too early finds it full.
    """
    idle = device_bytes(check.device)
    killer = StageKiller(stage, after, chosen)
    with stage_runner(config, killer) as runner:
        try:
            runner.ensure(stage, iteration)
        except StageCrashed as error:
            if check.device == "cuda":
                settled_bytes(check.device, idle + TOLERANCE, patience=20.0)
            return str(error) if killer.killed else None
    return None


def _resumed(config: Config, stage: str, iteration: int, folder: str) -> tuple[str, bool]:
    """Start a killed stage again; return in words, and as a fact, whether it lost or doubled a completion."""
    import pyarrow.dataset as ds

    with stage_runner(config) as runner:
        manifest = runner.ensure(stage, iteration).manifest
        files = runner.store.local_path(f"{manifest.folder}/{folder}")
        rows = ds.dataset(files, format="parquet").to_table(["step", "rank", "group_id", "sample"]).to_pylist()
    counts = manifest.counts.get("held-out", manifest.counts)
    wanted = counts["problems"] * counts["samples"] if stage == "evaluate" else int(counts["rollouts"])
    doubled = len(rows) - len({tuple(row.values()) for row in rows})
    return f"{len(rows)} completions of {wanted}, {doubled} doubled", len(rows) == wanted and not doubled


def _out_of_memory(check: Check) -> None:
    changes: dict[str, Any] = {"explore.engine": "transformers", "explore.steps": 1}
    if check.small:
        changes |= {"explore.group_size": 32, "explore.problems_per_step": 16, "explore.mini_batch_rollouts": 512}
        changes |= {"placement.micro_batch_tokens": 65536, "placement.generation_batch": 512}
    config = _config(check, "starved", changes)
    reason = ""
    with memory_taken(check.device, 2**30), stage_runner(config) as runner:
        try:
            runner.ensure("explore", 0)
        except StageError as error:
            reason = str(error)
    with stage_runner(config) as runner:
        steps = runner.ensure("explore", 0).manifest.counts["steps"]
    met = "out of memory" in reason and steps == 1
    check.judge("memory", met, f"started again with room: {steps} of 1 RL step", reason or "it did not fail")


PART = Part(
    "faults",
    "kill -9 of explore and of vLLM's engine, and a full device: the reason told, and what is resumed",
    "7 min; 1 min",
    (
        Line("explore", "explore killed at RL step 2 and resumed", "a reason; no rollout lost or doubled"),
        Line("engine", "vLLM's engine killed in evaluate", "a reason; no sample lost or doubled"),
        Line("memory", "explore on a device that another process has filled", "out of memory, said so; resumed"),
    ),
    run,
)
