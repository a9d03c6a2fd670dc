"""Evaluate a model on a problem set outside any run: sample into a folder, judge, compute metrics."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from rloop_core.config import Config, InvalidCombination, check_context, make_config
from rloop_core.errors import ConfigError
from rloop_core.files import replace_text
from rloop_core.json_text import parse_json
from rloop_core.problems import Problem, load_problems
from rloop_core.rollout.available import check_standalone, engine_name
from rloop_core.rollout.engine import SamplingSettings
from rloop_core.rollout.policy import context_tokens, load_tokenizer, policy_digest, resolve_policy
from rloop_core.rollout.prompts import encode_problems
from rloop_core.rollout.recording import Sampling, own_batches, record_samples
from rloop_core.runtime.cluster import join_cluster
from rloop_core.seeds import derive_seed
from rloop_core.stages.process import warm_up
from rloop_core.store import fingerprint
from rloop_core.verifier import VERIFIER_VERSION
from rloop_core.verifier.policies import DEFAULT, Policies

_USUAL_KS = (1, 8, 16, 32)
_DEFAULT_TOKENS = 2048
_PATIENCE_SECONDS = 600.0
"""How long to wait for the other machines."""
_SETTINGS = "settings.json"
_IDENTITY = ("samples", "template", "temperature", "top_p", "dtype", "engine", "batch", "seed")
"""The fields of a request that determine its samples."""

Tell = Callable[[int, int], None]
"""Called with (batches done, batches in all)."""


@dataclass(frozen=True)
class Request:
    """What to evaluate; `rloop evaluate --help` explains the fields.

    Attributes:
        share: (i, n) samples only the i-th of n shares of the batches, counted from 1.
        engines: Replicas of vLLM that share the batches; None takes one for each visible GPU.
    """

    model: str
    problems: str
    samples: int
    template: str
    temperature: float
    top_p: float
    max_tokens: int | None
    limit: int | None
    batch: int
    dtype: str
    seed: int
    ks: tuple[int, ...]
    policies: Policies = DEFAULT
    share: tuple[int, int] = (1, 1)
    engine: str = "transformers"
    engines: int | None = None


def default_ks(samples: int) -> tuple[int, ...]:
    """Return the usual k of pass@k, up to the number of samples of a problem."""
    return tuple(k for k in _USUAL_KS if k <= samples)


def checked_ks(ks: Iterable[int], samples: int) -> tuple[int, ...]:
    """Return the k in order; the usual ones if there are none.

    Raises:
        ConfigError: A k is greater than the number of samples of a problem.
    """
    ks = tuple(sorted(set(ks))) or default_ks(samples)
    if max(ks) > samples:
        what = f"pass@{max(ks)} needs as many samples of each problem"
        raise ConfigError(what, field="--k", fix=f"raise --samples to {max(ks)}")
    return ks


def evaluate(
    request: Request,
    out: Path | None,
    tell: Tell = lambda done, total: None,
    machines: int = 1,
    note: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Sample what is missing, judge it, and return the metrics with their origin.

    A request for a share samples its own batches only. While batches of other shares are missing, the result has no
    metrics, and `missing` is the number of those batches.

    Args:
        request: What to evaluate.
        out: Folder of samples and metrics; None takes one named after the settings.
        tell: Called with the progress; of several machines, that of this one's final pass over all batches.
        machines: Machines of the Ray cluster that share the batches, this one included; all must see `out`.
        note: Called with lines about the machines.

    Raises:
        RLoopError: Unknown model or problems, a budget beyond the model's context, a folder with other samples, or
            machines that are missing; the error of a machine names it.
    """
    from rloop_core.evaluation.outcomes import problem_outcomes, summarise

    if machines > 1:
        out = _share_batches(request, out, machines, note)
    config = _config(request, request.max_tokens or _DEFAULT_TOKENS, prompt_tokens=1_000_000)
    check_standalone(config, field="--engine")
    problems = load_problems(config.problems)
    policy = resolve_policy(config.policy)
    encoded = encode_problems(problems, config.prompt, load_tokenizer(policy))
    longest = max(len(problem.prompt_ids) for problem in encoded)
    budget = _budget(request, context_tokens(policy), longest)
    identity = {
        "model": policy_digest(policy),
        "problems": problems.digest,
        **{name: getattr(request, name) for name in _IDENTITY},
        "max_tokens": budget,
        "verifier": {"version": VERIFIER_VERSION, **request.policies.model_dump(mode="json")},
    }
    out = _prepare(out, identity, request)
    shards = _sample(_config(request, budget, longest), request, policy, problems, out, tell)
    missing = sum(not shard.exists() for shard in shards)
    metrics: dict[str, Any] = {}
    if not missing:
        metrics = summarise(problem_outcomes(shards), request.ks, seed=request.seed, majority=request.ks)
    result = {
        "model": request.model,
        "problem_set": request.problems,
        **metrics,
        "settings": identity,
        "drawn_by": engine_name(request.engine),
        "ledger": problems.ledger,
        "out": str(out),
        "batches": len(shards),
        "missing": missing,
    }
    if not missing:
        replace_text(out / "metrics.json", json.dumps(result, indent=1))
    return result


def _share_batches(request: Request, out: Path | None, machines: int, note: Callable[[str], None]) -> Path:
    """Have each machine sample its share of the batches; return the absolute path of the folder."""
    if out is None or request.share != (1, 1):
        fix = "name one with --out, and leave --shard out"
        raise ConfigError("several machines need a folder that all of them see", field="--machines", fix=fix)
    warm_up()
    cluster = join_cluster(machines, _device() == "cuda", _PATIENCE_SECONDS, note)
    out = out.expanduser().absolute()
    shares = [replace(request, share=(number, machines)) for number in range(1, machines + 1)]
    cluster.share_batches([partial(_run_share, share, out) for share in shares], note)
    return out


def _run_share(request: Request, out: Path, should_stop: Callable[[], bool]) -> int:
    """Sample a share and return its number of batches. Stopping ends the machine's whole process."""
    return len(own_batches(evaluate(request, out)["batches"], request.share))


def _sample(
    config: Config, request: Request, policy: Path, problems: Iterable[Problem], out: Path, tell: Tell
) -> list[Path]:
    """Sample the batches of this share, and return the shard files of all batches."""
    import transformers

    transformers.utils.logging.disable_progress_bar()
    settings = SamplingSettings(
        samples=request.samples,
        temperature=request.temperature,
        top_p=request.top_p,
        max_tokens=config.explore.max_completion_tokens,
        batch=request.batch,
        seed=derive_seed(request.seed, "evaluate", request.problems),
    )
    [shards] = record_samples(
        config,
        [Sampling(policy, problems, settings, out / "samples", "e")],
        device=_device(),
        run=config.name,
        iteration=0,
        share=request.share,
        on_batch=lambda number, done, total: tell(done, total),
    )
    return shards


def _config(request: Request, budget: int, prompt_tokens: int) -> Config:
    return make_config(
        {
            "name": "evaluate",
            "seed": request.seed,
            "policy": {"path": request.model, "dtype": request.dtype},
            "problems": {"source": request.problems, "limit": request.limit},
            "prompt": {"template": request.template, "max_tokens": prompt_tokens},
            "explore": {"max_completion_tokens": budget},
            "verifier": request.policies.model_dump(mode="json"),
            "placement": {"engine": request.engine, "engines": request.engines, "threads": None},
        }
    )


def _budget(request: Request, context: int | None, longest: int) -> int:
    """Return the completion tokens: as requested, or the default as far as the model's context leaves room."""
    if request.max_tokens is None:
        room = context - longest if context else _DEFAULT_TOKENS
        if room < 1:
            raise ConfigError(
                f"the longest prompt has {longest} tokens and the model's context {context}",
                field="--problems",
                fix="leave the longest problems out",
            )
        return min(_DEFAULT_TOKENS, room)
    try:
        check_context(_config(request, request.max_tokens, longest), context, "the model's config.json")
    except InvalidCombination as impossible:
        raise ConfigError(impossible.what, field="--max-tokens", fix="lower it") from None
    return request.max_tokens


def _prepare(out: Path | None, identity: dict[str, Any], request: Request) -> Path:
    """Return the folder of these samples, which `settings.json` marks; refuse one that holds other samples.

    Several shares may start in one folder at the same time: the first to write the settings wins.
    """
    folder = out or Path(".rloop/evaluate") / fingerprint(identity)[:16]
    settings = folder / _SETTINGS
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not settings.is_file():
            plain_request = {**asdict(request), "policies": request.policies.model_dump(mode="json")}
            with contextlib.suppress(FileNotFoundError):  # another share has just renamed the temporary file
                replace_text(settings, json.dumps({"identity": identity, "request": plain_request}, indent=1))
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
