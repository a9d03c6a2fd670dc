"""Evaluation's sampling on a CPU, against a loop of `generate` over the problems with as many samples of each."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.measure import Result

PROBLEMS, SAMPLES, MAX_TOKENS = 48, 32, 96


def bench() -> list[Result]:
    """Sample sums of unequal lengths from the bundled policy, in one thread; the reference goes first and last."""
    import torch

    from rloop_core.config import ProblemSource, PromptConfig
    from rloop_core.policies import bundled_policy_path
    from rloop_core.problems import load_problems
    from rloop_core.rollout.engine import SamplingSettings
    from rloop_core.rollout.policy import load_model, load_tokenizer
    from rloop_core.rollout.prompts import encode_problems
    from rloop_core.rollout.sampler import TransformersSampler

    torch.set_num_threads(1)
    folder = bundled_policy_path()
    tokenizer, model = load_tokenizer(folder), load_model(folder, dtype="float32", device="cpu").eval()
    params = {"min_terms": 3, "max_terms": 8, "min_digits": 1, "max_digits": 1}
    source = ProblemSource(source="reasoning_gym:chain_sum", size=PROBLEMS, seed=77, params=params)
    problems = encode_problems(load_problems(source), PromptConfig(template="plain", max_tokens=64), tokenizer)
    settings = SamplingSettings(samples=SAMPLES, temperature=1.0, top_p=1.0, max_tokens=MAX_TOKENS, batch=256, seed=1)
    sampler = TransformersSampler(model, tokenizer)
    _generate(model, tokenizer, problems[:2], sampler)
    tokens_first, seconds_first = _generate(model, tokenizer, problems[: PROBLEMS // 2], sampler)
    started = time.perf_counter()
    tokens = sum(len(sample.token_ids) for _, batch in sampler.sample(problems, settings) for sample in batch)
    ours = tokens / (time.perf_counter() - started)
    tokens_last, seconds_last = _generate(model, tokenizer, problems[PROBLEMS // 2 :], sampler)
    loop = (tokens_first + tokens_last) / (seconds_first + seconds_last)
    detail = f"{ours:,.0f} against {loop:,.0f} completion tokens a second"
    return [Result("evaluation: sampler / loop of generate", ours / loop, 2, "x", detail, at_least=True)]


def _generate(model: Any, tokenizer: Any, problems: Any, sampler: Any) -> tuple[int, float]:
    """Call `generate` once a problem; return completion tokens and seconds."""
    import torch

    started, tokens = time.perf_counter(), 0
    for problem in problems:
        ids = torch.tensor([list(problem.prompt_ids)])
        with torch.inference_mode():
            output = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=True,
                top_k=0,
                num_return_sequences=SAMPLES,
                max_new_tokens=MAX_TOKENS,
                eos_token_id=tokenizer.eos_token_id,
                pad_token_id=tokenizer.pad_token_id,
            )
        tokens += sum(len(sampler._cut(row)) for row in output[:, ids.shape[1] :].tolist())
    return tokens, time.perf_counter() - started
