"""A whole iteration of a 1.5 B policy: seconds, memory against `rloop plan`'s, and memory given back, stage by stage.

The stages run as in any run, each in a process tree of its own. With vLLM, explore has an engine in its own process,
harvest (from snapshots) and evaluate have theirs beside them. Memory is the driver's, of all processes together.
"""

from __future__ import annotations

from statistics import mean
from typing import Any

from benchmarks.gpu.check import Check, Line, Part
from benchmarks.gpu.device import GIB, MIB, TOLERANCE, PeakMemory, gpu, planned_device, settled_bytes
from benchmarks.gpu.policy import ONE_AND_A_HALF, STAGES, iteration_config
from benchmarks.gpu.processes import stage_runner
from rloop_core.config import Config
from rloop_core.plan.estimate import TRAINING_EFFICIENCY
from rloop_core.plan.memory import USABLE, stage_memories
from rloop_core.plan.models import find_shape
from rloop_core.stages.process import start_fork_server
from rloop_core.store import Manifest, Store

SECONDS = 600
_PLANNED = ("explore", "rft", "evaluate")
MARGIN = 1.15
"""Most memory that a stage may take, as a multiple of what the plan says."""


def run(check: Check) -> None:
    """Run stage by stage; compare what is in use before a stage, at its peak and a moment after it."""
    changes = {"name": "whole", "explore.snapshot_every": 2, "harvest.snapshot_samples": 2}
    full = {
        "explore.problems_per_step": 32,
        "explore.mini_batch_rollouts": 256,
        "explore.max_completion_tokens": 1024 if check.in_loop_vllm else 384,
        "explore.learning_rate": 1e-5,
        "evaluate.samples": 16,
        "evaluate.k": [1, 16],
    }
    config = iteration_config(check, "qwen2.5-math-1.5b.yaml", ONE_AND_A_HALF, changes, full=full)
    planned = _planned(config)
    if not planned:
        check.leave_out("the plan's figures are a GPU's", *(f"{stage}-memory" for stage in _PLANNED))
    start_fork_server()
    seconds, trained, left = 0.0, False, {}
    with stage_runner(config) as runner:
        runner.preflight()
        for stage in STAGES:
            with PeakMemory(check.device) as memory:
                manifest = runner.ensure(stage, 0).manifest
            left[stage] = settled_bytes(check.device, memory.before + TOLERANCE) - memory.before
            seconds += manifest.seconds
            check.show(stage, f"{manifest.seconds:.0f} s; {_facts(stage, manifest.counts, manifest.metrics)}")
            trained |= stage == "rft" and manifest.metrics["status"] == "trained"
            if stage in planned:
                _judge_memory(check, stage, memory.taken, planned[stage])
            if stage == "explore":
                _show_speeds(check, config, runner.store, manifest)
    why = "resident memory of this part's processes" if check.device == "cpu" else ""
    measured = ", ".join(f"{stage} {value / MIB:+.0f}" for stage, value in left.items())
    check.judge("released", max(left.values()) <= TOLERANCE, f"{measured} MiB", why)
    in_loop, alone = check.engines.values()
    why = f"random weights taught to box a digit or to babble; {in_loop} in exploration, {alone} elsewhere"
    check.judge("whole", trained and seconds <= SECONDS, f"{seconds:.0f} s; rft trained: {trained}", why)


def _planned(config: Config) -> dict[str, float]:
    """Return the bytes of each heavy stage by the memory model, on this GPU; on a CPU none."""
    shape, found = find_shape(config.policy), gpu()
    if config.placement.device == "cpu" or shape is None or found is None:
        return {}
    return {memory.stage: memory.needed for memory in stage_memories(config, shape, USABLE * found.total, 1)}


def _judge_memory(check: Check, stage: str, taken: int, planned: float) -> None:
    measured = f"{taken / GIB:.1f} GiB against {planned / GIB:.1f}: {taken / planned:.2f} x"
    if stage == "rft":
        check.show("rft-memory", measured, "with what torch keeps for later")
    else:
        check.judge_speed(f"{stage}-memory", taken <= MARGIN * planned, measured)


def _show_speeds(check: Check, config: Config, store: Store, manifest: Manifest) -> None:
    """Show the last RL step's tokens a second, and the share of the GPU's peak that its updates reach."""
    import pyarrow.parquet as pq

    from rloop_core.training.metrics_log import read_rows

    folder = store.local_path(manifest.folder)
    row = read_rows(folder / "metrics.jsonl")[-1]
    seconds = {name: values[-1] for name, values in manifest.metrics["seconds_by_step"].items()}
    prompts = pq.read_table(sorted((folder / "shards").glob("*.parquet"))[-1], columns=["prompt_ids"])["prompt_ids"]
    completions = row["rollouts"] * row["length_mean"]
    rate = (completions + row["rollouts"] * mean(map(len, prompts.to_pylist()))) / seconds["update"]
    device, shape = planned_device(check.device), find_shape(config.policy)
    reached = ""
    if device and shape:
        flops = (8 if config.placement.gradient_checkpointing else 6) * shape.parameters * rate
        reached = f"; {flops / device.flops:.2f} of the peak against the plan's {TRAINING_EFFICIENCY}"
    sampled = f"sampling {completions / seconds['generate']:,.0f} completion tokens/s"
    check.show("speed", f"{sampled}; updates {rate:,.0f} tokens/s{reached}")


def _facts(stage: str, counts: dict[str, Any], metrics: dict[str, Any]) -> str:
    if stage == "explore":
        phases = ", ".join(f"{name} {value:.0f} s" for name, value in metrics["seconds"].items())
        return f"{counts['rollouts']} rollouts, accuracy {metrics['accuracy_last']:.2f}; {phases}"
    if stage == "evaluate":
        avg = next(name for name in metrics["held-out"] if name.startswith("avg"))
        return f"{avg} {metrics['held-out'][avg]['value']:.2f} of {metrics['held-out']['samples']} samples"
    return ", ".join(f"{name} {value}" for name, value in counts.items() if isinstance(value, int))


PART = Part(
    "whole",
    "a 1.5 B policy through explore (2 RL steps), harvest, filter, rft and evaluate; memory against `rloop plan`'s",
    "8 min; 1 min",
    (
        Line("whole", "the five stages together, no failures", f"at most {SECONDS} s, rft trained"),
        *(Line(stage, f"of which {stage}") for stage in STAGES),
        *(
            Line(
                f"{stage}-memory",
                f"peak of {stage} against the plan's",
                f"at most {MARGIN} x" if stage != "rft" else "",
            )
            for stage in _PLANNED
        ),
        Line("released", "memory left in use after each stage", f"at most {TOLERANCE // MIB} MiB"),
        Line("speed", "the last RL step"),
    ),
    run,
)
