"""Evaluation's sampling against bare vLLM: the same policy, prompts, settings and share of memory, in turns.

Both engines live at the same time, each with its scheduler and weights in a process of its own. rloop's side judges and
writes its samples, as stage evaluate does, and gives each sequence a seed of its own.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.gpu.check import Check, Line, NotMeasured, Part
from benchmarks.gpu.device import has_vllm
from benchmarks.gpu.policy import ONE_AND_A_HALF, ready_policy
from benchmarks.gpu.processes import run_alone
from rloop_core.config import Config

BAR = 1.05
ROUNDS = 3


def run(check: Check) -> None:
    """Sample in turns in one process; compare tokens a second."""
    if not has_vllm() and not check.small:
        raise NotMeasured("vLLM is not installed")
    policy, problems = ready_policy(check, ONE_AND_A_HALF)
    changes = {
        "policy.path": str(policy),
        "problems": {"source": str(problems)},
        "prompt.max_tokens": 256,
        "explore.max_completion_tokens": 24 if check.small else 512,
        "explore.overlong.buffer_tokens": 0,
        "evaluate.sets": [{"source": str(problems), "name": "set"}],
        "evaluate.samples": 2 if check.small else 16,
        "evaluate.k": [1],
        "placement.engine": check.engines["placement.engine"],
        "placement.generation_batch": 16 if check.small else 512,
        "placement.vllm.memory": 0.4,
    }
    run_alone(_measure, check, check.config("qwen2.5-math-1.5b.yaml", changes), policy)


def _measure(check: Check, config: Config, policy: Path) -> None:
    """Measure completion tokens a second of both, round by round; one round before them warms up."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

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
    engine = make_engine(config, policy, check.device, tokenizer)
    samples = check.folder / "samples"
    with Verifier() as verifier:
        recording = RecordingSampler(config, policy, check.device, "bench", 0, verifier)
        recording._started = engine  # so that both of its uses share one engine
        sampling = Sampling(policy, problem_set, settings, samples, "b")

        def ours() -> int:
            shutil.rmtree(samples, ignore_errors=True)
            shards = recording.record(sampling, lambda done, total: None)
            return sum(pc.sum(pq.read_table(shard, columns=["length"])["length"]).as_py() for shard in shards)

        def alone() -> int:
            return sum(len(sample.token_ids) for _, batch in engine.sample(problems, settings) for sample in batch)

        bare, reference = alone, "the sampler alone, for vLLM is not installed"
        if config.placement.engine == "vllm":
            bare, reference = _bare_vllm(config, policy, check.device, problems, settings), "bare vLLM"
        rates: dict[str, list[float]] = {"bare": [], "ours": []}
        try:
            for number in range(ROUNDS + 1):
                for name, sample_all in (("bare", bare), ("ours", ours)):
                    started = time.perf_counter()
                    tokens = sample_all()
                    if number:
                        rates[name].append(tokens / (time.perf_counter() - started))
                if number:
                    _answer(check, rates, reference)
        finally:
            engine.close()


def _answer(check: Check, rates: dict[str, list[float]], reference: str) -> None:
    """Answer from the rounds measured so far."""
    ratios = [bare / ours for bare, ours in zip(rates["bare"], rates["ours"], strict=True)]
    measured = (
        f"{median(ratios):.3f} x; {median(rates['ours']):,.0f} against {median(rates['bare']):,.0f} tokens/s; "
        f"ratios of {len(ratios)} rounds {min(ratios):.3f} to {max(ratios):.3f}"
    )
    check.judge_speed("ratio", median(ratios) <= BAR, measured, f"against {reference}")


def _bare_vllm(config: Config, policy: Path, device: str, problems: Sequence[Any], settings: Any) -> Callable[[], int]:
    """Return vLLM used offline as its documentation shows; it returns its number of completion tokens."""
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
    parameters = SamplingParams(
        n=settings.samples, temperature=settings.temperature, top_p=settings.top_p, max_tokens=settings.max_tokens
    )
    prompts = [{"prompt_token_ids": list(problem.prompt_ids)} for problem in problems]

    def bare() -> int:
        outputs = model.generate(prompts, parameters, use_tqdm=False)
        return sum(len(sample.token_ids) for output in outputs for sample in output.outputs)

    return bare


PART = Part(
    "evaluate",
    "sampling for evaluate and harvest by stand-alone vLLM against bare vLLM, same prompts and settings",
    "7 min; 1 min",
    (Line("ratio", "sampled, judged and written, against bare vLLM: time a token", f"at most {BAR} x"),),
    run,
)
