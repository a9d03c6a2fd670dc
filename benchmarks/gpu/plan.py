"""Peaks of memory, and speeds, against what `rloop plan` says of the same config.

Prompts fill their budget, which is most of a sequence, so that all are nearly as long as the plan assumes. What must
fit is torch's peak of allocated memory; for a stage with vLLM, which takes a fixed share of the device, what the driver
gave out.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.gpu.bench import Bench, Line, Part
from benchmarks.gpu.device import GIB, PeakMemory, gpu, has_vllm, planned_device
from benchmarks.gpu.iteration import STAGES, iteration_config
from benchmarks.gpu.policy import ONE_AND_A_HALF, SMALL, cached_policy, problem_file
from benchmarks.gpu.processes import run_alone, stage_runner
from rloop_core.config import Config
from rloop_core.plan.hours import DEVICES, GENERATE_SECONDS_A_LAYER, TRAINING_EFFICIENCY
from rloop_core.plan.memory import USABLE, stage_memories
from rloop_core.plan.models import ModelShape, find_shape
from rloop_core.problems import render
from rloop_core.rollout.policy import load_tokenizer
from rloop_core.stages.job import StageJob, StageOutcome
from rloop_core.store import Manifest, Store

BAR = 0.15
PADDING, COMPLETION = 896, 128
"""Tokens before each question, and the completion's budget."""


@dataclass
class Observed:
    """Peaks of the memory that torch allocated and held, in bytes, 0 without a GPU; (seconds, steps done) of events."""

    allocated: int = 0
    reserved: int = 0
    marks: list[tuple[float, float]] = field(default_factory=list)


def run(bench: Bench) -> None:
    """Measure explore, rft and evaluate with transformers, then the stages in which vLLM samples."""
    _stages(bench, "transformers", STAGES)
    if not has_vllm():
        bench.leave_out("vLLM is not installed", "vllm-explore", "vllm-evaluate")
    elif bench.in_loop_vllm:
        _stages(bench, "vllm", ("explore", "evaluate-base"))
    else:
        _stages(bench, "vllm", ("evaluate-base",))
        bench.leave_out("vLLM cannot follow a trainer on a CPU", "vllm-explore")


def _stages(bench: Bench, engine: str, stages: tuple[str, ...]) -> None:
    config = _config(bench, engine)
    shape = find_shape(config.policy)
    assert shape is not None
    found = gpu()
    available = USABLE * (found.total if bench.device == "cuda" and found else DEVICES["h100"].memory_gib * GIB)
    planned = {memory.stage: memory.needed for memory in stage_memories(config, shape, available, 1)}
    observed = Observed()

    def launch(job: StageJob, on_event: Callable[[dict[str, Any]], None], **limits: Any) -> StageOutcome:
        nonlocal observed
        Path(job.work).mkdir(parents=True, exist_ok=True)
        outcome, observed = run_alone(_execute_observed, job)
        return outcome

    with stage_runner(config, launch=launch) as runner:
        for name in stages:
            stage, _, base = name.partition("-")
            with PeakMemory(bench.device) as memory:
                manifest = runner.ensure(stage, -1 if base else 0).manifest
            if manifest.metrics.get("status") == "carried":
                for key in ("transformers-rft", "rft-speed"):
                    bench.answer(key, "failed", "", "nothing to train on: no rollout was correct")
                continue
            if stage in planned:
                _judge(bench, f"{engine}-{stage}", planned[stage], observed, memory.taken)
            if engine == "transformers" and stage == "explore":
                _explore_speeds(bench, config, shape, runner.store, manifest)
            if engine == "transformers" and stage == "rft":
                _rft_speed(bench, config, shape, observed)


def _execute_observed(job: StageJob) -> tuple[StageOutcome, Observed]:
    import torch

    from rloop_core.stages.execute import execute

    observed = Observed()

    def on_event(event: dict[str, Any]) -> None:
        if event.get("kind") == "step":
            observed.marks.append((time.monotonic(), float(event["done"])))

    outcome = execute(job, on_event)
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        observed.allocated, observed.reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    return outcome, observed


def _config(bench: Bench, engine: str) -> Config:
    padding, completion = (160, 16) if bench.small else (PADDING, COMPLETION)
    preface = "7" * padding + " "  # a digit is a token
    count = 24 if bench.small else 64
    problems = problem_file(bench.folder / "long.jsonl", 10, count, preface)
    held_out = problem_file(bench.folder / "held-out.jsonl", 10, count, preface.replace("7", "8"))
    recipe = replace(SMALL if bench.small else ONE_AND_A_HALF, prompts=1)  # more of such prompts take much memory
    policy = cached_policy(bench.out / "policies" / f"long-{bench.small}", recipe, "boxed", problems, bench.device)
    tokenizer = load_tokenizer(policy)
    questions = [json.loads(line)["problem"] for line in problems.read_text().splitlines()]
    changes = {
        "name": f"plan-{engine}",
        "policy.path": str(policy),
        "problems": {"source": str(problems)},
        "prompt.max_tokens": max(len(tokenizer(render(question, "boxed"))["input_ids"]) for question in questions),
        "explore.max_completion_tokens": completion,
        "explore.engine": "vllm" if engine == "vllm" and bench.in_loop_vllm else "transformers",
        "placement.engine": engine,
        "evaluate.sets": [{"source": str(held_out), "name": "held-out"}],
    }
    full = {
        "explore.problems_per_step": 16,
        "explore.mini_batch_rollouts": 128,
        "evaluate.samples": 4,
        "evaluate.k": [1],
    }
    return iteration_config(
        bench, "qwen2.5-math-1.5b.yaml", ONE_AND_A_HALF, changes, full=full, store=f"store-{engine}"
    )


def _judge(bench: Bench, key: str, planned: float, observed: Observed, taken: int) -> None:
    if bench.device == "cpu":
        measured = f"{taken / GIB:.2f} GiB of the host; planned for a GPU {planned / GIB:.2f}"
        bench.answer(key, "not run", measured, "the plan's figure is a GPU's")
        return
    peak = taken if key.startswith("vllm") else observed.allocated
    ratio = peak / planned
    measured = (
        f"{peak / GIB:.1f} GiB against {planned / GIB:.1f}: {ratio:.2f} x; the driver gave out "
        f"{taken / GIB:.1f}, torch held {observed.reserved / GIB:.1f}"
    )
    if bench.small:
        bench.show(key, measured, "not judged: libraries take more than a tiny policy")
    else:
        bench.judge(key, abs(ratio - 1) <= BAR, measured)


def _explore_speeds(bench: Bench, config: Config, shape: ModelShape, store: Store, manifest: Manifest) -> None:
    from rloop_core.training.metrics_log import read_rows

    row = read_rows(store.local_path(f"{manifest.folder}/metrics.jsonl"))[-1]
    seconds = {name: values[-1] for name, values in manifest.metrics["seconds_by_step"].items()}
    batches = -(-row["rollouts"] // config.placement.generation_batch)
    decoding_step = seconds["generate"] / (batches * row["length_max"])
    bench.show(
        "generate-speed",
        f"{row['rollouts'] * row['length_mean'] / seconds['generate']:,.0f} tokens/s, {1000 * decoding_step:.0f} ms "
        f"a decoding step of {shape.layers} layers against {1000 * shape.layers * GENERATE_SECONDS_A_LAYER:.0f}",
        "the scoring pass is in it",
    )
    tokens = row["rollouts"] * (config.prompt.max_tokens + row["length_mean"])
    _show_training(bench, "update-speed", config, shape, tokens / seconds["update"])


def _rft_speed(bench: Bench, config: Config, shape: ModelShape, observed: Observed) -> None:
    if len(observed.marks) < 3:
        bench.leave_out("too few updates to time", "rft-speed")
        return
    (first, _), (last, _) = observed.marks[0], observed.marks[-1]
    tokens = config.rft.batch_trajectories * config.prompt.max_tokens * (len(observed.marks) - 1)
    _show_training(bench, "rft-speed", config, shape, tokens / (last - first))


def _show_training(bench: Bench, key: str, config: Config, shape: ModelShape, rate: float) -> None:
    """Show tokens a second and the share of the GPU's peak: 6 FLOP a parameter and token, 8 with checkpointing."""
    kind = planned_device(bench.device)
    reached = ""
    if bench.device == "cuda" and kind:
        flops = (8 if config.placement.gradient_checkpointing else 6) * shape.parameters * rate
        reached = f"; {flops / DEVICES[kind].flops:.2f} of the peak against {TRAINING_EFFICIENCY}"
    bench.show(key, f"{rate:,.0f} tokens/s{reached}")


PART = Part(
    "plan",
    "peak memory of explore, rft and evaluate, and their speed, against `rloop plan`'s figures",
    "8 min; 1 min",
    (
        *(Line(f"transformers-{stage}", f"peak of {stage}", f"within {BAR:.0%}") for stage in ("explore", "rft")),
        Line("transformers-evaluate", "peak of evaluate, as of harvest's drawing", f"within {BAR:.0%}"),
        *(
            Line(f"vllm-{stage}", f"peak of {stage} with vLLM", f"within {BAR:.0%}")
            for stage in ("explore", "evaluate")
        ),
        Line("generate-speed", "drawing by `generate` in explore"),
        Line("update-speed", "training in explore"),
        Line("rft-speed", "training in rft"),
    ),
    run,
)
