"""Peaks of memory, and speeds, beside what `rloop plan` says of the same config.

Prompts fill their budget, which is most of a sequence, so that all are nearly as long as the plan takes them to be.
What must fit is what torch has allocated at its peak; of a stage with vLLM, which takes a share of the device whatever
it needs, what the driver gave out.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.gpu.alone import alone
from benchmarks.gpu.bench import Bench, Part
from benchmarks.gpu.iteration import iteration_config
from benchmarks.gpu.machine import gpu, has_vllm, planned_device
from benchmarks.gpu.policy import ONE_AND_A_HALF, SMALL, made, problem_file
from benchmarks.gpu.row import Line
from benchmarks.gpu.runs import runner_of
from benchmarks.gpu.watch import GIB, Watch
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
class Seen:
    """What was seen of a stage.

    Attributes:
        allocated: Peak of torch's allocator in the stage's process, in bytes; 0 without a GPU.
        reserved: Peak of what it held of the device.
        marks: (seconds, steps done) of each event.
    """

    allocated: int = 0
    reserved: int = 0
    marks: list[tuple[float, float]] = field(default_factory=list)


def run(bench: Bench) -> None:
    """explore, rft and evaluate with transformers, then what vLLM draws."""
    engines = ["transformers"] + (["vllm"] if has_vllm() else [])
    for engine in engines:
        in_loop = "vllm" if engine == "vllm" and bench.in_loop_vllm else "transformers"
        stages = ["explore", "harvest", "filter", "rft", "evaluate"]
        if engine == "vllm":
            stages = ["explore", "evaluate-base"] if in_loop == "vllm" else ["evaluate-base"]
        _stages(bench, engine, in_loop, stages)
    if not has_vllm():
        for key in ("vllm-explore", "vllm-evaluate"):
            bench.leave_out(key, "vLLM is not installed")
    elif not bench.in_loop_vllm:
        bench.leave_out("vllm-explore", "vLLM cannot follow a trainer on a CPU")


def _stages(bench: Bench, engine: str, in_loop: str, stages: list[str]) -> None:
    config = _config(bench, engine, in_loop)
    shape = find_shape(config.policy)
    assert shape is not None
    found = gpu()
    available = USABLE * (found.total if bench.device == "cuda" and found else DEVICES["h100"].memory_gib * GIB)
    planned = {one.stage: one.needed for one in stage_memories(config, shape, available, 1)}
    launcher = _Watched()
    with runner_of(config, launch=launcher) as runner:
        for name in stages:
            stage, _, base = name.partition("-")
            with Watch(bench.device) as watch:
                manifest = runner.ensure(stage, -1 if base else 0).manifest
            if manifest.metrics.get("status") == "carried":
                for key in ("transformers-rft", "rft-speed"):
                    bench.answer(key, "failed", "", "nothing to train on: no rollout was correct")
                continue
            if stage in planned:
                _judge(bench, f"{engine}-{stage}", planned[stage], launcher.seen, watch, engine == "vllm")
            if engine == "transformers" and stage in ("explore", "rft"):
                _speeds(bench, config, shape, runner.store, manifest, launcher.seen)


def _config(bench: Bench, engine: str, in_loop: str) -> Config:
    padding, completion = (160, 16) if bench.small else (PADDING, COMPLETION)
    preface = "7" * padding + " "  # a digit is a token
    long = problem_file(bench.folder / "long.jsonl", 10, 24 if bench.small else 64, preface)
    recipe = replace(SMALL if bench.small else ONE_AND_A_HALF, prompts=1)  # more of such prompts take much memory
    policy = made(bench.out / "policies" / f"long-{bench.small}", recipe, "boxed", long, bench.device)
    tokenizer = load_tokenizer(policy)
    questions = [json.loads(line)["problem"] for line in long.read_text().splitlines()]
    longest = max(len(tokenizer(render(question, "boxed"))["input_ids"]) for question in questions)
    changes: dict[str, Any] = {
        "name": f"plan-{engine}",
        "policy.path": str(policy),
        "problems": {"source": str(long)},
        "prompt.max_tokens": longest,
        "explore.max_completion_tokens": completion,
        "explore.engine": in_loop,
        "placement.engine": engine,
        "evaluate.sets": [{"source": str(long), "name": "held-out"}],
        "decontaminate.mode": "off",
    }
    if not bench.small:
        changes |= {
            "explore.problems_per_step": 16,
            "explore.mini_batch_rollouts": 128,
            "evaluate.samples": 4,
            "evaluate.k": [1],
        }
    return iteration_config(bench, "qwen2.5-math-1.5b.yaml", ONE_AND_A_HALF, changes, f"store-{engine}")


def _judge(bench: Bench, key: str, planned: float, seen: Seen, watch: Watch, by_driver: bool) -> None:
    if bench.device == "cpu":
        measured = f"{watch.taken / GIB:.2f} GiB of the host; planned for a GPU {planned / GIB:.2f}"
        bench.answer(key, "not run", measured, "the plan's figure is a GPU's")
        return
    peak = watch.taken if by_driver else seen.allocated
    ratio = peak / planned
    measured = f"{peak / GIB:.1f} GiB against {planned / GIB:.1f}: {ratio:.2f} x; the driver gave out "
    measured += f"{watch.taken / GIB:.1f}, torch held {seen.reserved / GIB:.1f}"
    if bench.small:
        bench.show(key, measured, "not judged: libraries take more than a tiny policy")
    else:
        bench.judge(key, abs(ratio - 1) <= BAR, measured)


def _speeds(bench: Bench, config: Config, shape: ModelShape, store: Store, manifest: Manifest, seen: Seen) -> None:
    kind = planned_device(bench.device)
    peak = DEVICES[kind].flops if kind else None
    again = 2 if config.placement.gradient_checkpointing else 0
    if manifest.stage == "rft":
        if len(seen.marks) > 2:
            (began, _), (ended, _) = seen.marks[0], seen.marks[-1]
            tokens = config.rft.batch_trajectories * config.prompt.max_tokens * (len(seen.marks) - 1)
            _training(bench, "rft-speed", shape, tokens / (ended - began), 6 + again, peak)
        else:
            bench.leave_out("rft-speed", "too few updates to time")
        return
    from rloop_core.training.metrics_log import read_rows

    row = read_rows(store.local_path(f"{manifest.folder}/metrics.jsonl"))[-1]
    seconds = {name: values[-1] for name, values in manifest.metrics["seconds_by_step"].items()}
    batches = -(-row["rollouts"] // config.placement.generation_batch)
    step = seconds["generate"] / (batches * row["length_max"])
    drawn = row["rollouts"] * row["length_mean"] / seconds["generate"]
    planned = shape.layers * GENERATE_SECONDS_A_LAYER
    bench.show(
        "generate-speed",
        f"{drawn:,.0f} tokens/s, {1000 * step:.0f} ms a decoding step of {shape.layers} layers "
        f"against {1000 * planned:.0f}",
        "the scoring pass is in it",
    )
    tokens = row["rollouts"] * (config.prompt.max_tokens + row["length_mean"])
    _training(bench, "update-speed", shape, tokens / seconds["update"], 6 + again, peak)


def _training(bench: Bench, key: str, shape: ModelShape, rate: float, passes: int, peak: float | None) -> None:
    reached = (
        f"; {passes * shape.parameters * rate / peak:.2f} of the peak against {TRAINING_EFFICIENCY}" if peak else ""
    )
    bench.show(key, f"{rate:,.0f} tokens/s{reached if bench.device == 'cuda' else ''}")


class _Watched:
    """A launcher that keeps what was seen of the last stage."""

    def __init__(self) -> None:
        self.seen = Seen()

    def __call__(self, job: StageJob, tell: Callable[[dict[str, Any]], None], **limits: Any) -> StageOutcome:
        Path(job.work).mkdir(parents=True, exist_ok=True)
        outcome, self.seen = alone(_executed, job)
        return outcome


def _executed(job: StageJob) -> tuple[StageOutcome, Seen]:
    import torch

    from rloop_core.stages.execute import execute

    seen = Seen()

    def tell(event: dict[str, Any]) -> None:
        if event.get("kind") == "step":
            seen.marks.append((time.monotonic(), float(event["done"])))

    outcome = execute(job, tell)
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        seen.allocated, seen.reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    return outcome, seen


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
