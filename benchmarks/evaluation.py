"""Evaluation's sampling on a CPU, against a loop of `generate` over the problems with as many samples of each."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.line import Line

PROBLEMS, SAMPLES, MAX_TOKENS = 48, 32, 96


def bench() -> list[Line]:
    """The bundled policy on held-out sums of unequal lengths, one thread; the reference goes first and last."""
    import torch

    torch.set_num_threads(1)
    ours, loop = _measure()
    detail = f"{ours:,.0f} against {loop:,.0f} completion tokens a second"
    return [Line("evaluation: sampler / loop of generate", ours / loop, 2, "x", detail, at_least=True)]


def _measure() -> tuple[float, float]:
    """Completion tokens a second: the sampler's, and the loop's."""
    from rloop_core.config import ProblemSource, PromptConfig
    from rloop_core.policies import bundled_policy_path
    from rloop_core.problems import load_problems
    from rloop_core.rollout.engine import SamplingSettings
    from rloop_core.rollout.policy import load_model, load_tokenizer
    from rloop_core.rollout.prompts import encode_problems
    from rloop_core.rollout.sampler import TransformersSampler

    folder = bundled_policy_path()
    tokenizer, model = load_tokenizer(folder), load_model(folder, dtype="float32", device="cpu").eval()
    params = {"min_terms": 3, "max_terms": 8, "min_digits": 1, "max_digits": 1}
    source = ProblemSource(source="reasoning_gym:chain_sum", size=PROBLEMS, seed=77, params=params)
    problems = encode_problems(load_problems(source), PromptConfig(template="plain", max_tokens=64), tokenizer)
    settings = SamplingSettings(samples=SAMPLES, temperature=1.0, top_p=1.0, max_tokens=MAX_TOKENS, batch=256, seed=1)
    sampler = TransformersSampler(model, tokenizer)
    _loop(model, tokenizer, problems[:2], sampler)
    first = _loop(model, tokenizer, problems[: PROBLEMS // 2], sampler)
    started = time.perf_counter()
    tokens = sum(len(one.token_ids) for _, batch in sampler.sample(problems, settings) for one in batch)
    ours = tokens / (time.perf_counter() - started)
    last = _loop(model, tokenizer, problems[PROBLEMS // 2 :], sampler)
    return ours, sum(pair[0] for pair in (first, last)) / sum(pair[1] for pair in (first, last))


def _loop(model: Any, tokenizer: Any, problems: Any, sampler: Any) -> tuple[int, float]:
    """(completion tokens, seconds) of one `generate` call a problem."""
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
