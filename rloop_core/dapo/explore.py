"""One exploration phase, from theta_i to N_RL recorded RL steps (Algorithm 1, exploration step)."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rloop_core.config import Config
from rloop_core.errors import StageError
from rloop_core.rollout.policy import eos_token_ids, load_model, load_tokenizer, save_policy
from rloop_core.rollout.prompts import EncodedProblem
from rloop_core.verifier import Verifier

if TYPE_CHECKING:
    from rloop_core.dapo.trainer import DapoTrainer


@dataclass(frozen=True)
class ExploreJob:
    """One phase.

    Args:
        config: The run's config.
        iteration: i.
        attempt: How often this phase was started before.
        seed: Seed of the phase.
        policy: Folder of theta_i.
        work: Scratch folder that survives a crash: shards, checkpoints, snapshots, metrics.
        device: "cpu" or "cuda".
    """

    config: Config
    iteration: int
    attempt: int
    seed: int
    policy: Path
    work: Path
    device: str


def explore(
    job: ExploreJob, problems: Sequence[EncodedProblem], verifier: Verifier, tell: Callable[[dict[str, Any]], None]
) -> None:
    """Run or resume the phase; afterwards `work` holds every RL step's shards, snapshots, metrics and `policy/`.

    Raises:
        StageError: The phase did not reach its last RL step, or its loss is not finite.
    """
    from rloop_core.dapo.callbacks import StepBoundary, last_checkpoint
    from rloop_core.dapo.ledger import StepLedger

    checkpoint = last_checkpoint(job.work / "checkpoints")
    trainer = make_trainer(job, problems, verifier, cursor=checkpoint.cursor if checkpoint else 0)
    updates_per_step = trainer.plan.updates_per_step
    done = checkpoint.updates // updates_per_step if checkpoint else 0

    def save_snapshot(step: int) -> None:
        folder = job.work / "snapshots" / f"step-{step:06d}"
        save_policy(trainer.model, job.policy, folder, dtype=job.config.policy.dtype)

    ledger = StepLedger(job.work, done, tell)
    trainer.add_callback(StepBoundary(trainer, ledger, job.config.explore.snapshot_every, save_snapshot))
    trainer.train(resume_from_checkpoint=str(checkpoint.folder) if checkpoint else None)
    _prove_finished(trainer.state.global_step, trainer.plan.steps * updates_per_step, done)
    save_policy(trainer.model, job.policy, job.work / "policy", dtype=job.config.policy.dtype)


def make_trainer(
    job: ExploreJob, problems: Sequence[EncodedProblem], verifier: Verifier, *, cursor: int = 0, record: bool = True
) -> DapoTrainer:
    """The trainer of a phase, at a place in the problem stream; without `record` it keeps no rollouts (benchmarks)."""
    from trl.rewards import get_soft_overlong_punishment

    from rloop_core.dapo.problem_stream import ProblemStream
    from rloop_core.dapo.recorder import RolloutRecorder
    from rloop_core.dapo.reward import AnswerReward
    from rloop_core.dapo.settings import grpo_config
    from rloop_core.dapo.trainer import DapoTrainer, StepPlan

    explore = job.config.explore
    remote = job.config.policy.trust_remote_code
    tokenizer = load_tokenizer(job.policy, trust_remote_code=remote)
    # Master weights are float32: bfloat16 alone cannot hold an update of learning rate 1e-6.
    model = load_model(job.policy, dtype="float32", device=job.device, trust_remote_code=remote)
    answer = AnswerReward(verifier, explore.reward_correct, explore.reward_wrong, eos_token_ids(model, tokenizer))
    rewards: list[Any] = [answer]
    if explore.overlong.buffer_tokens:
        rewards.append(get_soft_overlong_punishment(explore.max_completion_tokens, explore.overlong.buffer_tokens))
    recorder = RolloutRecorder(job.work / "shards", job.config.name, job.iteration, 0, job.attempt)
    return DapoTrainer(
        plan=StepPlan(explore.steps, explore.problems_per_step, explore.group_size, explore.updates_per_step),
        problems=problems,
        stream=ProblemStream(len(problems), job.seed, cursor),
        answer_reward=answer,
        recorder=recorder if record else None,
        sampling=explore.dynamic_sampling,
        generation_batch=job.config.placement.generation_batch,
        model=model,
        reward_funcs=rewards,
        args=grpo_config(
            job.config, job.work / "checkpoints", seed=job.seed, world_size=1, use_cpu=job.device == "cpu"
        ),
        train_dataset=_placeholder(problems),
        processing_class=tokenizer,
    )


def seal(job: ExploreJob, out: Path) -> dict[str, int]:
    """Lay the finished phase's artifact out in `out`; returns its counts.

    Only winning shards go in, written so that an interrupted phase and an undisturbed one give equal files.
    """
    from rloop_core.trajectories.shards import seal_shards

    shutil.rmtree(out, ignore_errors=True)
    sealed = seal_shards(job.work / "shards", out / "shards", steps=job.config.explore.steps, ranks=1)
    shutil.copytree(job.work / "policy", out / "policy")
    if (job.work / "snapshots").is_dir():
        shutil.copytree(job.work / "snapshots", out / "snapshots")
    shutil.copyfile(job.work / "metrics.jsonl", out / "metrics.jsonl")
    return {"shards": len(sealed), "steps": job.config.explore.steps}


def _placeholder(problems: Sequence[EncodedProblem]) -> Any:
    """A data set for TRL to count; the trainer's problems come from its stream."""
    from datasets import Dataset

    return Dataset.from_dict({"prompt": [problem.prompt for problem in problems]})


def _prove_finished(reached: int, wanted: int, resumed_at: int) -> None:
    """A resume flag that is silently ignored, or a run that ends early with exit code 0, must not pass for success."""
    if reached != wanted:
        raise StageError(
            f"stopped after {reached} of {wanted} optimizer updates (resumed at RL step {resumed_at})",
            field="explore",
            fix="look at the stage's log, then start the same command again",
        )


__all__ = ["ExploreJob", "explore", "seal"]
