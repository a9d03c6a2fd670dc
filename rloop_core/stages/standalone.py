"""Evaluate a model on a problem set outside any run: sample into a folder, judge, compute metrics."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from rloop_core.config import Config, InvalidCombination, check_context, make_config
from rloop_core.errors import ConfigError
from rloop_core.files import replace_text
from rloop_core.json_text import parse_json
from rloop_core.problems import ProblemSet, load_problems
from rloop_core.rollout.available import check_standalone, engine_name
from rloop_core.rollout.engine import SamplingSettings
from rloop_core.rollout.policy import context_tokens, load_tokenizer, policy_digest, resolve_policy
from rloop_core.rollout.prompts import check_vocabulary, encode_problems, within_limits
from rloop_core.rollout.recording import Sampling, Share, record_samples
from rloop_core.runtime.environment import is_foreign
from rloop_core.seeds import derive_seed
from rloop_core.store import fingerprint
from rloop_core.verifier import VERIFIER_VERSION
from rloop_core.verifier.policies import DEFAULT, Policies

_USUAL_KS = (1, 8, 16, 32)
_DEFAULT_TOKENS = 2048
_WHOLE: Share = (1, 1)

OnBatch = Callable[[int, int], None]
"""Called with (batches done, batches in all)."""


def default_ks(samples: int) -> tuple[int, ...]:
    """Return the usual k of pass@k, up to the number of samples of a problem."""
    return tuple(k for k in _USUAL_KS if k <= samples)


def evaluation_config(
    *, model: str, problems: str, samples: int, ks: Iterable[int], template: str, temperature: float, top_p: float,
    max_tokens: int | None, limit: int | None, batch: int, dtype: str, seed: int, policies: Policies = DEFAULT,
    engine: str = "transformers", engines: int | None = None,
) -> Config:  # fmt: skip
    """Return the config of one evaluation; `rloop evaluate --help` explains the arguments. No `ks` are the usual ones.

    Raises:
        ConfigError: An argument is impossible, such as a k above `samples`.
    """
    return make_config(
        {
            "name": "evaluate",
            "seed": seed,
            "policy": {"path": model, "dtype": dtype},
            "problems": {"source": problems, "limit": limit},
            "prompt": {"template": template, "max_tokens": 1_000_000},
            "explore": {"max_completion_tokens": max_tokens or _DEFAULT_TOKENS},
            "evaluate": {
                "samples": samples,
                "k": sorted(set(ks)) or default_ks(samples),
                "temperature": temperature,
                "top_p": top_p,
                "max_completion_tokens": max_tokens,
            },
            "verifier": policies.model_dump(mode="json"),
            "placement": {"engine": engine, "engines": engines, "generation_batch": batch, "threads": None},
        }
    )


def evaluate(
    config: Config,
    out: Path | None,
    on_batch: OnBatch = lambda done, total: None,
    share: Share = _WHOLE,
) -> dict[str, Any]:
    """Sample what is missing, judge it, and return the metrics with their origin.

    While batches of other shares are missing, the result has no metrics, and `missing` is the number of those batches.

    Args:
        config: Of `evaluation_config`.
        out: Folder of samples and metrics; None takes one named after the settings.
        on_batch: Called with the progress.
        share: The batches to sample.

    Raises:
        RLoopError: Unknown model or problems, a budget beyond the model's context, or a folder with other samples.
    """
    from rloop_core.evaluation.outcomes import problem_outcomes, summarise

    check_standalone(config, field="--engine")
    for name in filter(is_foreign, [*os.environ]):  # as in a stage's process
        del os.environ[name]
    problems = load_problems(config.problems)
    policy = resolve_policy(config.policy)
    longest = within_limits(problems, lambda: _longest_prompt(config, policy, problems))
    config = _fitted(config, context_tokens(policy), longest)
    identity = _identity(config, policy_digest(policy), problems.digest)
    out = _prepare(out, identity, config)
    import transformers

    transformers.utils.logging.disable_progress_bar()
    [shards] = record_samples(
        config,
        [Sampling(policy, problems, _settings(config), out / "samples", "e")],
        device=_device(),
        run=config.name,
        iteration=0,
        share=share,
        on_batch=lambda number, done, total: on_batch(done, total),
    )
    missing = sum(not shard.exists() for shard in shards)
    metrics = {} if missing else summarise(problem_outcomes(shards), config.evaluate.k, seed=config.seed)
    result = {
        "model": config.policy.path,
        "problem_set": config.problems.source,
        **metrics,
        "settings": identity,
        "sampled_by": engine_name(config.placement.engine),
        "ledger": problems.ledger,
        "out": str(out),
        "batches": len(shards),
        "missing": missing,
    }
    if not missing:
        replace_text(out / "metrics.json", json.dumps(result, indent=1))
    return result


def _longest_prompt(config: Config, policy: Path, problems: ProblemSet) -> int:
    """Return its length in tokens, after a look at what the policy has for them."""
    tokenizer = load_tokenizer(policy)
    encoded = encode_problems(problems, config.prompt, tokenizer)
    check_vocabulary(policy, tokenizer, encoded)
    return max(len(problem.prompt_ids) for problem in encoded)


def _settings(config: Config) -> SamplingSettings:
    return SamplingSettings(
        samples=config.evaluate.samples,
        temperature=config.evaluate.temperature,
        top_p=config.evaluate.top_p,
        max_tokens=config.evaluation_tokens,
        batch=config.placement.generation_batch,
        seed=derive_seed(config.seed, "evaluate", config.problems.source),
    )


def _fitted(config: Config, context: int | None, longest: int) -> Config:
    """Return the config with room for the longest prompt (tokens), and the completion budget that is left.

    The budget is the requested one, or the default as far as the model's context leaves room.
    """
    budget = config.evaluate.max_completion_tokens
    if budget is None:
        room = context - longest if context else _DEFAULT_TOKENS
        if room < 1:
            what = f"the longest prompt has {longest} tokens and the model's context {context}"
            raise ConfigError(what, field="--problems", fix="leave the longest problems out")
        budget = min(_DEFAULT_TOKENS, room)
    prompt = config.prompt.model_copy(update={"max_tokens": longest})
    explore = config.explore.model_copy(update={"max_completion_tokens": budget})
    fitted = config.model_copy(update={"prompt": prompt, "explore": explore})
    try:
        check_context(fitted, context, "the model's config.json")
    except InvalidCombination as impossible:
        raise ConfigError(impossible.what, field="--max-tokens", fix="lower it") from None
    return fitted


def _identity(config: Config, model: str, problems: str) -> dict[str, Any]:
    """Return everything that determines the samples, with the digests of model and problems."""
    return {
        "model": model,
        "problems": problems,
        "samples": config.evaluate.samples,
        "template": config.prompt.template,
        "temperature": config.evaluate.temperature,
        "top_p": config.evaluate.top_p,
        "dtype": config.policy.dtype,
        "engine": config.placement.engine,
        "batch": config.placement.generation_batch,
        "seed": config.seed,
        "max_tokens": config.evaluation_tokens,
        "verifier": {"version": VERIFIER_VERSION, **config.verifier.model_dump(mode="json")},
    }


def _prepare(out: Path | None, identity: dict[str, Any], config: Config) -> Path:
    """Return the folder of these samples, which `settings.json` marks; refuse one that holds other samples.

    Several shares may start in one folder at the same time: the first to write the settings wins.
    """
    folder = out or Path(".rloop/evaluate") / fingerprint(identity)[:16]
    settings = folder / "settings.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not settings.is_file():
            content = {"identity": identity, "config": config.model_dump(mode="json")}
            with contextlib.suppress(FileNotFoundError):  # another share has just renamed the temporary file
                replace_text(settings, json.dumps(content, indent=1))
        recorded = parse_json(settings.read_bytes())["identity"]
        if recorded != json.loads(json.dumps(identity)):
            differing = ", ".join(name for name in identity if recorded.get(name) != identity[name])
            what = f"{folder} holds samples of other settings ({differing})"
            raise ConfigError(what, field="--out", fix="name another folder")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{folder} cannot be used: {error}", field="--out", fix="name another folder") from error
    return folder


def _device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"
