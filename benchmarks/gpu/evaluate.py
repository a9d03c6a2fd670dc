"""Evaluation's drawing beside bare vLLM: the same policy, prompts, settings and share of memory, in turns.

Both engines live at the same time, each with its scheduler and weights in a process of its own. rloop's side judges and
writes what it draws, as stage evaluate does. vLLM walks through its sequences one by one where each has a seed of its
own, as rloop's have; so bare vLLM is timed with such seeds as well, to tell what they cost.
"""

from __future__ import annotations

import os
import shutil
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.alone import alone
from benchmarks.gpu.bench import Bench, Part
from benchmarks.gpu.iteration import ready_policy
from benchmarks.gpu.machine import has_vllm, planned_device
from benchmarks.gpu.policy import ONE_AND_A_HALF
from benchmarks.gpu.row import Line
from rloop_core.config import Config
from rloop_core.plan.hours import DEVICES, vllm_tokens_per_second
from rloop_core.plan.models import find_shape

BAR = 1.05
ROUNDS = 3
MEMORY = 0.4

Drawer = Callable[[], int]
"""Draws everything once; returns completion tokens."""


def run(bench: Bench) -> None:
    """Rounds of turns in one process; ratios of tokens a second."""
    if not has_vllm() and not bench.small:
        for line in PART.lines:
            bench.leave_out(line.key, "vLLM is not installed")
        return
    policy, problems = ready_policy(bench, ONE_AND_A_HALF)
    config = evaluate_config(bench, policy, problems)
    rates = alone(measure, config, policy, bench.folder, bench.device, ROUNDS)
    theirs = "bare vLLM" if has_vllm() else "the sampler alone, for vLLM is not installed"
    for key in ("whole", "drawing"):
        ratios = [bare / ours for bare, ours in zip(rates["bare"], rates[key], strict=True)]
        middle = statistics.median(ratios)
        pair = f"{statistics.median(rates[key]):,.0f} against {statistics.median(rates['bare']):,.0f} tokens/s"
        spread = f"ratios of {ROUNDS} rounds {min(ratios):.3f} to {max(ratios):.3f}"
        measured = f"{middle:.3f} x; {pair}; {spread}"
        if key == "whole":
            bench.judge_speed(key, middle <= BAR, measured, f"against {theirs}")
        else:
            bench.show(key, measured, f"against {theirs}")
    if "seeded" in rates:
        ratios = [bare / seeded for bare, seeded in zip(rates["bare"], rates["seeded"], strict=True)]
        bench.show("seeds", f"{statistics.median(ratios):.3f} x; {statistics.median(rates['seeded']):,.0f} tokens/s")
        _against_the_plan(bench, config, statistics.median(rates["bare"]))
    else:
        bench.leave_out("seeds", "vLLM is not installed")
        bench.leave_out("plan", "vLLM is not installed")


def _against_the_plan(bench: Bench, config: Config, rate: float) -> None:
    kind, shape = planned_device(bench.device), find_shape(config.policy)
    if kind is None or shape is None:
        bench.leave_out("plan", "rloop plan does not know this device")
        return
    tokens = config.explore.max_completion_tokens
    planned = vllm_tokens_per_second(
        shape, DEVICES[kind], config.placement.generation_batch, config.prompt.max_tokens + tokens, 2
    )
    bench.show("plan", f"{rate:,.0f} against {planned:,.0f} tokens/s; {rate / planned:.2f} x", f"planned as {kind}")


def evaluate_config(bench: Bench, policy: Path, problems: Path) -> Config:
    """One set, drawn by vLLM where there is one."""
    return bench.config(
        "qwen2.5-math-1.5b.yaml",
        {
            "policy.path": str(policy),
            "problems": {"source": str(problems)},
            "prompt.max_tokens": 256,
            "explore.max_completion_tokens": 24 if bench.small else 512,
            "explore.overlong.buffer_tokens": 0,
            "evaluate.sets": [{"source": str(problems), "name": "set"}],
            "evaluate.samples": 2 if bench.small else 16,
            "evaluate.k": [1],
            "placement.engine": bench.engines["placement.engine"],
            "placement.generation_batch": 16 if bench.small else 512,
            "placement.vllm.memory": MEMORY,
        },
    )


def measure(config: Config, policy: Path, folder: Path, device: str, rounds: int) -> dict[str, list[float]]:
    """Completion tokens a second of each round, by who draws; one round before them warms all up."""
    from rloop_core.problems import load_problems
    from rloop_core.rollout.engine import SamplingSettings
    from rloop_core.rollout.policy import load_tokenizer
    from rloop_core.rollout.prompts import encode_problems
    from rloop_core.rollout.recording import JudgedSampler, make_engine
    from rloop_core.verifier import Verifier

    problems = encode_problems(load_problems(config.problems), config.prompt, load_tokenizer(policy))
    settings = SamplingSettings(
        samples=config.evaluate.samples,
        temperature=1.0,
        top_p=1.0,
        max_tokens=config.explore.max_completion_tokens,
        batch=config.placement.generation_batch,
        seed=1,
    )
    tokenizer = load_tokenizer(policy)
    engine = make_engine(config, policy, device, tokenizer)
    drawers: dict[str, Drawer] = {}
    with Verifier() as verifier:
        sampler = JudgedSampler(config, policy, device, "bench", 0, verifier)
        sampler._started = engine  # one engine draws for both of its lines

        def whole() -> int:
            shutil.rmtree(folder / "samples", ignore_errors=True)
            shards = sampler.record(
                problems, settings, folder / "samples", step=0, label="b", tell=lambda done, total: None
            )
            return _tokens_in(shards)

        def drawing() -> int:
            return sum(len(one.token_ids) for _, batch in engine.sample(problems, settings) for one in batch)

        if config.placement.engine == "vllm":
            drawers |= bare_vllm(config, policy, device, problems, settings)
        else:
            drawers["bare"] = drawing
        drawers |= {"whole": whole, "drawing": drawing}
        rates: dict[str, list[float]] = {name: [] for name in drawers}
        try:
            for number in range(rounds + 1):
                for name, draw in drawers.items():
                    began = time.perf_counter()
                    tokens = draw()
                    if number:
                        rates[name].append(tokens / (time.perf_counter() - began))
        finally:
            engine.close()
    return rates


def bare_vllm(config: Config, policy: Path, device: str, problems: Sequence[Any], settings: Any) -> dict[str, Drawer]:
    """vLLM as its own documentation has it used offline, without and with a seed for each sequence."""
    os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    if device == "cpu":
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", str(config.placement.vllm.cpu_cache_gb))
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    from vllm import LLM, SamplingParams  # reads its environment

    longest = config.prompt.max_tokens + config.explore.max_completion_tokens
    on_cpu = {"enforce_eager": True, "enable_chunked_prefill": False, "max_num_batched_tokens": max(4096, longest)}
    model = LLM(
        model=str(policy),
        dtype=config.policy.dtype,
        seed=0,
        generation_config="vllm",
        max_model_len=longest,
        max_num_seqs=config.placement.generation_batch,
        gpu_memory_utilization=config.placement.vllm.memory,
        disable_log_stats=True,
        **(on_cpu if device == "cpu" else {}),
    )
    shared = {"temperature": settings.temperature, "top_p": settings.top_p, "max_tokens": settings.max_tokens}
    prompts = [{"prompt_token_ids": list(problem.prompt_ids)} for problem in problems]

    def bare() -> int:
        outputs = model.generate(prompts, SamplingParams(n=settings.samples, **shared), use_tqdm=False)
        return sum(len(one.token_ids) for output in outputs for one in output.outputs)

    def seeded() -> int:
        each = [prompt for prompt in prompts for _ in range(settings.samples)]
        parameters = [SamplingParams(seed=place, **shared) for place in range(len(each))]
        outputs = model.generate(each, parameters, use_tqdm=False)
        return sum(len(one.token_ids) for output in outputs for one in output.outputs)

    return {"bare": bare, "seeded": seeded}


def _tokens_in(shards: Sequence[Path]) -> int:
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    return sum(pc.sum(pq.read_table(shard, columns=["length"])["length"]).as_py() for shard in shards)


PART = Part(
    "evaluate",
    "drawing for evaluate and harvest with stand-alone vLLM against bare vLLM, same prompts and settings",
    "7 min; 1 min",
    (
        Line("whole", "drawn, judged and written, against bare vLLM: time a token", f"at most {BAR} x"),
        Line("drawing", "the same, drawn alone"),
        Line("seeds", "bare vLLM with a seed for each sequence against itself without"),
        Line("plan", "bare vLLM's tokens/s against the plan's"),
    ),
    run,
)
