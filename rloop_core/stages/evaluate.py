"""Stage evaluate: avg@k, pass@k and majority@k of a policy on every evaluation set, all samples kept (paper 5.1)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from rloop_core.evaluation.outcomes import problem_outcomes, summarise
from rloop_core.rollout.available import engine_name
from rloop_core.rollout.engine import SamplingSettings
from rloop_core.rollout.prompts import encode_problems
from rloop_core.rollout.recording import JudgedSampler, own_batches
from rloop_core.seeds import derive_seed
from rloop_core.stages.execute import StageContext
from rloop_core.stages.job import StageOutcome
from rloop_core.trajectories.shards import consolidate
from rloop_core.verifier import Verifier


def run(context: StageContext) -> StageOutcome:
    """Sample, verify and summarise the iteration's final policy, and explore's snapshots if the config asks for them.

    Batches that an earlier attempt finished are not sampled again.
    """
    roles = context.roles("problems:")
    snapshots = _snapshots(context)
    if not context.job.share:
        shutil.rmtree(context.out, ignore_errors=True)
    with context.verifier() as verifier:
        evaluation = _Evaluation(context, verifier, roles, policies=len(snapshots) + 1)
        metrics = evaluation.run(context.folder("policy"), step=0, place=Path())
        by_step = {step: evaluation.run(folder, step, Path(folder.name)) for step, folder in snapshots.items()}
    if context.job.share:
        return StageOutcome({"batches": evaluation.batches}, {})
    content = {
        "sets": metrics,
        "folders": {role.removeprefix("problems:"): _folder(index) for index, role in enumerate(roles)},
        "snapshots": {str(step): summaries for step, summaries in by_step.items()},
    }
    (context.out / "metrics.json").write_text(json.dumps(content, indent=1, sort_keys=True))
    counts = {
        label: {"problems": summary["problems"], "samples": context.config.evaluate.of(label).samples}
        for label, summary in metrics.items()
    }
    engine = engine_name(context.config.placement.engine)
    return StageOutcome(counts | ({"snapshots": len(by_step)} if by_step else {}), metrics, drawn_by=engine)


def _snapshots(context: StageContext) -> dict[int, Path]:
    """Return the snapshots of the iteration's RL phase by RL step; none unless the config asks for them."""
    if not context.roles("explored"):
        return {}
    folders = sorted((context.folder("explored") / "snapshots").glob("step-*"))
    return {int(folder.name.removeprefix("step-")): folder for folder in folders}


def _folder(index: int) -> str:
    return f"set-{index:02d}"


class _Evaluation:
    """Evaluates policies one by one on the same sets, with progress over all of them."""

    def __init__(self, context: StageContext, verifier: Verifier, roles: list[str], policies: int) -> None:
        self._context, self._verifier, self._roles = context, verifier, roles
        self._total = policies * len(roles)
        self._done = 0
        self.batches = 0

    def run(self, policy: Path, step: int, place: Path) -> dict[str, Any]:
        """Evaluate a policy; return summaries by set, with the samples in `<out>/<place>/set-00/` and so on.

        A share of the stage only samples its batches.
        """
        context = self._context
        job = context.job
        metrics: dict[str, Any] = {}
        samples = context.work / "samples" / context.config.placement.sampling_key / place
        with JudgedSampler(context.config, policy, context.device, job.run, job.iteration, self._verifier) as sampler:
            for index, role in enumerate(self._roles):
                label = role.removeprefix("problems:")
                shards = sampler.record(
                    encode_problems(context.problems(role), context.config.prompt, sampler.tokenizer),
                    self._sampling(label, step),
                    samples / _folder(index),
                    step=step,
                    label=f"e{index:02d}",
                    tell=self._on_batch,
                    share=context.share,
                )
                self._done += 1
                if context.job.share:
                    self.batches += len(own_batches(len(shards), context.share))
                    continue
                files = consolidate(shards, context.out / place / _folder(index))
                ks = context.config.evaluate.of(label).k
                metrics[label] = summarise(problem_outcomes(files), ks, seed=context.config.seed)
        return metrics

    def _sampling(self, label: str, step: int) -> SamplingSettings:
        """Return a set's settings; each policy has its own seed, or equal policies would agree by more than chance."""
        config = self._context.config
        settings = config.evaluate.of(label)
        return SamplingSettings(
            samples=settings.samples,
            temperature=settings.temperature,
            top_p=settings.top_p,
            max_tokens=config.evaluation_tokens_of(label),
            batch=config.placement.generation_batch,
            seed=derive_seed(config.seed, "evaluate", label, self._context.job.iteration, step),
        )

    def _on_batch(self, done: int, total: int) -> None:
        self._context.on_progress(self._done + done / total, self._total)
