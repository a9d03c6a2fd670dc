"""Stage preflight: check everything that can be known to fail before anything expensive starts."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

from rloop_core.config import Config, check_context
from rloop_core.errors import ConfigError, ProblemsError
from rloop_core.problems import ProblemSet, self_check
from rloop_core.rollout.available import check_in_loop, check_standalone, replicas_of
from rloop_core.rollout.policy import (
    check_weights,
    context_tokens,
    load_model,
    load_tokenizer,
    resolve_policy,
)
from rloop_core.rollout.prompts import check_vocabulary, encode_problems, within_limits
from rloop_core.rollout.recording import make_verifier
from rloop_core.rollout.sampler import TransformersSampler
from rloop_core.rollout.vllm_server import asks_server, check_server
from rloop_core.runtime.events import as_notes
from rloop_core.stages.context import StageContext
from rloop_core.stages.inputs import Inputs
from rloop_core.stages.job import InputRef, StageOutcome
from rloop_core.store import Store
from rloop_core.trackers import check_trackers
from rloop_core.training.adapters import check_adapters

_TOLERATED_GOLDS = 0.2


def check_light(config: Config, store: Store, inputs: Inputs) -> tuple[InputRef, ...]:
    """Check store, engines, model, context and problem sets; return the inputs of the thorough check.

    Raises:
        RLoopError: One clear line about the first thing that is wrong.
    """
    store.check_writable()
    check_standalone(config)
    check_in_loop(config, device=None)
    _check_sharding(config)
    folder = resolve_policy(config.policy)
    if not any(folder.glob("*.safetensors")):
        fix = "save the weights as safetensors"
        raise ConfigError(f"{folder} holds no *.safetensors", field="policy.path", fix=fix)
    check_weights(folder)
    check_adapters(config)
    check_trackers(config)
    check_context(config, context_tokens(folder), str(folder / "config.json"))
    return (inputs.base(), inputs.training(), *inputs.evaluation())


def _check_sharding(config: Config) -> None:
    """Refuse FSDP with `generate`: every forward pass gathers weights, and ranks call it unequally often."""
    from rloop_core.plan.memory import sharding_of

    way, file = sharding_of(config), config.placement.accelerate_config
    if way.stage >= 3 and not way.deepspeed and config.explore.engine == "transformers":
        what = f"{file} shards the weights by FSDP, under which transformers cannot generate"
        fix = "set explore.engine to vllm, or name infra/accelerate/zero3.yaml"
        raise ConfigError(what, field="placement.accelerate_config", fix=fix)


def check_memory(config: Config, folder: Path, available: float) -> list[str]:
    """Return a warning for each stage that does not fit in the device's free memory (bytes) by `rloop plan`'s model.

    Stages ran on a GPU as planned, but their memory was measured for one alone (docs/results/2026-11-23-gpu.md). So it
    only warns, unless the training states alone do not fit.

    Raises:
        ConfigError: They do not; the fix names the settings that make them fit.
    """
    from rloop_core.plan.memory import GIB, stage_memories
    from rloop_core.plan.models import find_shape

    shape = find_shape(config.policy.model_copy(update={"path": str(folder)}))
    if shape is None:
        return []
    warnings = []
    for stage in stage_memories(config, shape, available, config.placement.processes):
        if not stage.fits:
            what = f"{stage.stage} needs about {stage.needed / GIB:.1f} GiB, the device has {available / GIB:.1f} free"
            if stage.states > available:
                raise ConfigError(what, field="placement", fix=stage.fix)
            warnings.append(f"{what} (estimated); if it runs out of memory: {stage.fix}")
    return warnings


def run(context: StageContext) -> StageOutcome:
    """Check model, tokenizer, prompt lengths and golds thoroughly, as a stage without an artifact.

    Raises:
        RLoopError: One clear line about the first thing that is wrong.
    """
    config = context.config
    policy = context.folder("policy")
    check_in_loop(config, context.device)
    if asks_server(config):
        check_server(config)
    if context.device == "cuda":
        import torch

        for warning in check_memory(config, policy, float(torch.cuda.mem_get_info()[0])):
            as_notes(context.on_event)(warning)
        if config.placement.engine == "vllm":
            replicas_of(config, context.device)
    sets = [context.problems(role) for role in context.roles("problems")]
    within_limits(
        (problem for each in sets for problem in each), lambda: _check_prompts(config, policy, sets, context.work)
    )
    counts: dict[str, int] = {}
    golds_refused: dict[str, list[str]] = {}
    with make_verifier(config) as verifier:
        for role, problems in zip(context.roles("problems"), sets, strict=True):
            refused = self_check(problems, verifier)
            if len(refused) > _TOLERATED_GOLDS * len(problems):
                raise ProblemsError(
                    f"{len(refused)} of {len(problems)} golds do not verify against themselves, first "
                    f"{refused[0].gold[:60]!r} (problem {refused[0].id})",
                    field=role,
                    fix="correct the answers: no completion could ever be judged correct",
                )
            counts[f"{role} problems"] = len(problems)
            counts[f"{role} golds that do not verify"] = len(refused)
            golds_refused[role] = [problem.id for problem in refused]
    context.out.mkdir(parents=True, exist_ok=True)
    (context.out / "report.json").write_text(json.dumps(counts))
    return StageOutcome(counts, {"golds_refused": golds_refused})


def _check_prompts(config: Config, policy: Path, sets: list[ProblemSet], work: Path) -> None:
    tokenizer = load_tokenizer(policy)
    if "transformers" in (config.explore.engine, config.placement.engine):
        without_weights = load_model(policy, dtype=config.policy.dtype, device="meta")
        TransformersSampler(without_weights, tokenizer)
    for problems in sets:
        encoded = encode_problems(problems, config.prompt, tokenizer)
        check_vocabulary(policy, tokenizer, encoded)
        if encode_problems(islice(problems, 50), config.prompt, tokenizer) != encoded[:50]:
            fix = "take what is random out of its chat template, or choose another prompt.template"
            raise ConfigError("the tokenizer gives other prompts each time", field="policy.path", fix=fix)
        _check_round_trip([list(problem.prompt_ids) for problem in encoded[:50]], tokenizer, work)


def _check_round_trip(prompts: list[list[int]], tokenizer: object, work: Path) -> None:
    """Refuse a tokenizer that changes when saved: later stages would see other prompts than this one."""
    folder = work / "tokenizer"
    tokenizer.save_pretrained(folder)  # type: ignore[attr-defined]
    again = load_tokenizer(folder)
    texts = [tokenizer.decode(ids) for ids in prompts]  # type: ignore[attr-defined]
    before = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]  # type: ignore[operator]
    after = [again(text, add_special_tokens=False)["input_ids"] for text in texts]
    if before != after:
        raise ConfigError(
            "the tokenizer gives other ids after it is saved and loaded",
            field="policy.path",
            fix="save it with the transformers version in use, and compare",
        )
