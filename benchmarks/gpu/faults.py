"""Stages killed, starved or bereft of their engine: each ends in one clear sentence, and goes on when started again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.gpu.ballast import all_but
from benchmarks.gpu.bench import Bench, Part
from benchmarks.gpu.iteration import iteration_config
from benchmarks.gpu.machine import has_vllm
from benchmarks.gpu.policy import HALF
from benchmarks.gpu.row import Line
from benchmarks.gpu.runs import Killer, runner_of
from benchmarks.gpu.watch import TOLERANCE, device_bytes, settled_bytes
from rloop_core.config import Config
from rloop_core.errors import StageCrashed, StageError
from rloop_core.stages.process import warm_up
from rloop_core.store import Manifest, Store

STEPS = 4
_KEY = ("step", "rank", "group_id", "sample")
_SHARDS = {"explore": "shards", "evaluate": "set-00"}
Resumed = tuple[Manifest, dict[tuple[Any, ...], dict[str, Any]]]
"""What a stage that was killed came to in the end: its manifest, and its rows."""


def run(bench: Bench) -> None:
    """Explore and evaluate disturbed, and a device that is full; at last both undisturbed, to be compared with."""
    warm_up()
    config = _config(bench, "killed")
    explored = _explore(bench, config)
    evaluated = _evaluate(bench, config)
    _out_of_memory(bench)
    undisturbed = _config(bench, "whole")
    rounding = "vLLM promises no equal completions in other batches" if bench.in_loop_vllm else ""
    _compare(bench, undisturbed, explored, 0, rounding)
    rounding = "each sequence has a seed of its own; rounding may differ by batch" if has_vllm() else ""
    _compare(bench, undisturbed, evaluated, -1, rounding)


def _config(bench: Bench, store: str, changes: Mapping[str, Any] | None = None) -> Config:
    shared: dict[str, Any] = {
        "name": "faults",
        "explore.steps": STEPS,
        "placement.checkpoint_every": 1,
        "placement.generation_batch": 8 if bench.small else 32,
    }
    if not bench.small:
        shared |= {
            "explore.problems_per_step": 8,
            "explore.mini_batch_rollouts": 64,
            "explore.max_completion_tokens": 128,
            "explore.learning_rate": 1e-5,
            "evaluate.samples": 16,
            "evaluate.max_completion_tokens": 256,
        }
    return iteration_config(bench, "qwen2.5-0.5b.yaml", HALF, {**shared, **(changes or {})}, f"store-{store}")


def _explore(bench: Bench, killed: Config) -> Resumed:
    reason = _fails(bench, killed, "explore", 0, 2)
    before = _rows(*_scratch(killed, "explore", "shards"))
    with runner_of(killed) as runner:
        manifest = runner.ensure("explore", 0).manifest
        harvested = runner.ensure("harvest", 0).manifest
        after = _rows(*_files(runner.store, manifest, "shards"))
    engine = f"{bench.engines['explore.engine']}: "
    kept = max(int(row["step"]) for row in before)
    # The last step may have been recorded before its checkpoint was: such a step is drawn again.
    settled = {key: row for key, row in _by_key(before).items() if key[0] < kept}
    lost = [key for key, row in settled.items() if _by_key(after).get(key) != row]
    doubled = len(after) - len(_by_key(after))
    wanted = int(manifest.counts["rollouts"])
    measured = f"{len(after)} rollouts of {wanted}, {doubled} doubled, {len(lost)} changed; harvest proves "
    measured += f"{harvested.counts['trajectories']} complete"
    fine = not lost and not doubled and len(after) == wanted and bool(settled)
    bench.judge("explore", fine and bool(reason), measured, f"{engine}{reason or 'it did not fail'}")
    return manifest, _by_key(after)


def _evaluate(bench: Bench, killed: Config) -> Resumed:
    if has_vllm():
        reason = _fails(bench, killed, "evaluate", -1, 0.2, lambda command: "VLLM" in command)
        bench.judge("engine", bool(reason), f"{_batches(killed)} batches kept", reason or "it did not fail")
    else:
        bench.leave_out("engine", "transformers draws in the stage's own process; vLLM is not installed")
    reason = _fails(bench, killed, "evaluate", -1, 0.5)
    before = _rows(*_scratch(killed, "evaluate", "samples"))
    with runner_of(killed) as runner:
        manifest = runner.ensure("evaluate", -1).manifest
        after = _rows(*_files(runner.store, manifest, "set-00"))
    lost = [key for key, row in _by_key(before).items() if _by_key(after).get(key) != row]
    wanted = manifest.counts["held-out"]["problems"] * manifest.counts["held-out"]["samples"]
    doubled = len(after) - len(_by_key(after))
    measured = f"{len(after)} samples of {wanted}, {doubled} doubled, {len(lost)} of {len(before)} kept ones changed"
    fine = not lost and not doubled and len(after) == wanted and bool(before)
    engine = f"{bench.engines['placement.engine']}: "
    bench.judge("evaluate", fine and bool(reason), measured, f"{engine}{reason or 'it did not fail'}")
    return manifest, _by_key(after)


def _compare(bench: Bench, undisturbed: Config, resumed: Resumed, iteration: int, rounding: str) -> None:
    """Beside a stage that nobody disturbed; `rounding` says why they need not be equal, if they need not."""
    manifest, ours = resumed
    stage = manifest.stage
    with runner_of(undisturbed) as runner:
        other = runner.ensure(stage, iteration).manifest
        theirs = _by_key(_rows(*_files(runner.store, other, _SHARDS[stage])))
    same = sum(_drawn(ours[key]) == _drawn(row) for key, row in theirs.items() if key in ours)
    equal = manifest.digest == other.digest
    measured = "equal, digest for digest" if equal else f"{same} of {len(theirs)} completions equal, digests differ"
    if rounding:
        bench.show(f"{stage}-equality", measured, rounding)
    else:
        bench.judge(f"{stage}-equality", equal, measured)


def _out_of_memory(bench: Bench) -> None:
    large = {"explore.group_size": 32, "explore.problems_per_step": 16, "explore.mini_batch_rollouts": 512}
    large |= {"placement.micro_batch_rollouts": 512, "placement.generation_batch": 512}
    changes = {"explore.engine": "transformers", "explore.steps": 1, **(large if bench.small else {})}
    config = _config(bench, "starved", changes)
    reason = None
    with all_but(bench.device, 2**30), runner_of(config) as runner:
        try:
            runner.ensure("explore", 0)
        except StageError as error:
            reason = str(error)
    with runner_of(config) as runner:
        done = runner.ensure("explore", 0).manifest.counts["steps"]
    said = reason or "it did not fail"
    named = reason is not None and "out of memory" in reason
    bench.judge("memory", named and done == 1, f"started again with room: {done} of 1 RL step", said)


def _fails(
    bench: Bench,
    config: Config,
    stage: str,
    iteration: int,
    far: float,
    which: Callable[[str], bool] | None = None,
) -> str | None:
    """The sentence in which a stage ends that is killed so far on; None when it did not end, or by another error.

    What it held of a GPU is free again before this returns: an engine that starts too early finds it full.
    """
    idle = device_bytes(bench.device)
    killer = Killer(stage, far, which)
    with runner_of(config, killer) as runner:
        try:
            runner.ensure(stage, iteration)
        except StageCrashed as error:
            if bench.device == "cuda":
                settled_bytes(bench.device, idle + TOLERANCE, patience=20.0)
            return str(error).partition("; its log ends")[0] if killer.killed else None
    return None


def _scratch(config: Config, stage: str, folder: str) -> list[Path]:
    """The shards that a stage which was killed has left."""
    root = Path(config.placement.store) / ".scratch" / config.name
    return sorted(root.glob(f"*/{stage}/*/{folder}/**/*.parquet"))


def _files(store: Store, manifest: Manifest, folder: str) -> list[Path]:
    return sorted(store.local_path(f"{manifest.folder}/{folder}").glob("**/*.parquet"))


def _rows(*files: Path) -> list[dict[str, Any]]:
    import pyarrow.parquet as pq

    columns = [*_KEY, "problem_id", "completion_ids", "verdict", "reward", "logprob_sum"]
    return [row for file in files for row in pq.read_table(file, columns=columns).to_pylist()]


def _by_key(rows: list[dict[str, Any]]) -> dict[tuple[Any, ...], dict[str, Any]]:
    return {tuple(row[name] for name in _KEY): row for row in rows}


def _drawn(row: dict[str, Any]) -> Any:
    return row["problem_id"], row["completion_ids"]


def _batches(config: Config) -> int:
    return len(_scratch(config, "evaluate", "samples"))


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
