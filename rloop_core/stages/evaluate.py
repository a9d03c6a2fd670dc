"""Stage evaluate: avg@k and pass@k of a policy on every configured set, all samples stored (paper 5.1)."""

from __future__ import annotations

import json
import shutil
from typing import Any

from rloop_core.evaluation.outcomes import problem_outcomes, summarise
from rloop_core.rollout.judged import JudgedSampler
from rloop_core.rollout.prompts import encode_problems
from rloop_core.rollout.sampler import SamplingSettings
from rloop_core.seeds import derive_seed
from rloop_core.stages.execute import StageContext
from rloop_core.stages.job import StageOutcome
from rloop_core.trajectories.consolidate import consolidate


def run(context: StageContext) -> StageOutcome:
    """Sample, judge and summarise; batches that an earlier attempt finished are kept."""
    config, placement = context.config, context.config.placement
    settings = config.evaluate
    roles = context.roles("problems:")
    metrics: dict[str, Any] = {}
    counts: dict[str, Any] = {}
    shutil.rmtree(context.out, ignore_errors=True)
    with context.verifier() as verifier:
        sampler = JudgedSampler(
            config, context.folder("policy"), context.device, context.job.run, context.job.iteration, verifier
        )
        for index, role in enumerate(roles):
            label = role.removeprefix("problems:")
            problems = encode_problems(context.problems(role), config.prompt, sampler.tokenizer)
            sampling = SamplingSettings(
                samples=settings.samples,
                temperature=settings.temperature,
                top_p=settings.top_p,
                max_tokens=config.evaluation_tokens,
                batch=placement.generation_batch,
                seed=derive_seed(config.seed, "evaluate", label),
            )

            def tell(done: int, total: int, before: int = index) -> None:
                context.tell({"kind": "step", "done": before + done / total, "total": len(roles), "metrics": {}})

            shards = sampler.record(
                problems,
                sampling,
                context.work / "samples" / f"set-{index:02d}",
                step=0,
                label=f"e{index:02d}",
                tell=tell,
            )
            files = consolidate(shards, context.out / f"set-{index:02d}")
            metrics[label] = summarise(problem_outcomes(files), settings.k, seed=config.seed)
            counts[label] = {"problems": len(problems), "samples": settings.samples}
    content = {
        "sets": metrics,
        "folders": {role.removeprefix("problems:"): f"set-{i:02d}" for i, role in enumerate(roles)},
    }
    (context.out / "metrics.json").write_text(json.dumps(content, indent=1, sort_keys=True))
    return StageOutcome(counts, metrics)
