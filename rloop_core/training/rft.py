"""theta_{i+1} = argmax_theta of the expert set's log-likelihood, from theta_i (paper, Algorithm 1, equation 6).

The stored token ids are trained on, not text made into tokens again; the prompt is masked; the ending eos is learned;
nothing is cut.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rloop_core.config import Config
from rloop_core.errors import StageError
from rloop_core.rollout.policy import context_tokens, load_model, load_tokenizer, save_policy
from rloop_core.training.adapters import adapter_settings, loading_dtype, policy_of


@dataclass(frozen=True)
class RFTJob:
    """One fine-tuning.

    Args:
        config: The run's config.
        seed: Seed of the order of the trajectories.
        policy: Folder of theta_i.
        work: Scratch folder.
        device: "cpu" or "cuda".
        rank: This process among those of the fine-tuning; the first writes the policy.
        ranks: Processes of the fine-tuning.
    """

    config: Config
    seed: int
    policy: Path
    work: Path
    device: str
    rank: int = 0
    ranks: int = 1


def finetune(
    job: RFTJob, prompt_ids: list[list[int]], completion_ids: list[list[int]], tell: Callable[[dict[str, Any]], None]
) -> dict[str, float]:
    """Fine-tune theta_i on trajectories and write theta_{i+1} to `work/policy`.

    Several ranks share each batch of one rank's order, so that they differ from it by floating-point sums alone.

    Args:
        job: What and where.
        prompt_ids: One row a trajectory.
        completion_ids: Likewise, the ending eos included.
        tell: Called after each update with its metrics.

    Returns:
        `updates`, mean loss of the first and of the last update in nats a token, and tokens trained on.

    Raises:
        StageError: A trajectory exceeds the model's context, does not end in eos, or the loss is not finite.
    """
    from rloop_core.training.rft_ranks import SharingTrainer

    settings = job.config.rft
    remote = job.config.policy.trust_remote_code
    tokenizer = load_tokenizer(job.policy, trust_remote_code=remote)
    model = load_model(job.policy, dtype=loading_dtype(job.config), device=job.device, trust_remote_code=remote)
    _check_lengths(prompt_ids, completion_ids, context_tokens(job.policy))
    count = len(prompt_ids)
    updates = math.ceil(count / settings.batch_trajectories) * settings.epochs
    losses = _Losses(tell, updates)
    silent = -count % settings.batch_trajectories if job.ranks > 1 else 0
    trainer = SharingTrainer(
        silent_rows=silent,
        model=model,
        args=_sft_config(job, updates),
        train_dataset=_dataset(prompt_ids, completion_ids, silent),
        processing_class=tokenizer,
        callbacks=[losses.callback()],
        peft_config=adapter_settings(job.config, "rft"),
    )
    trainer.train()
    if trainer.state.global_step != updates or len(losses.values) != updates:
        raise StageError(
            f"stopped after {trainer.state.global_step} of {updates} updates", field="rft", fix="run again"
        )
    if not all(math.isfinite(value) for value in losses.values):
        raise StageError("the loss is not finite", field="rft.learning_rate", fix="lower it")
    model, weights = policy_of(trainer, job.config)
    if job.rank == 0:
        save_policy(model, job.policy, job.work / "policy", dtype=job.config.policy.dtype, weights=weights)
    return {
        "updates": float(updates),
        "loss_first": losses.values[0],
        "loss_last": losses.values[-1],
        "tokens": float(sum(map(len, completion_ids)) * settings.epochs),
    }


def _sft_config(job: RFTJob, updates: int) -> Any:
    from trl import SFTConfig

    settings = job.config.rft
    share = settings.batch_trajectories // job.ranks
    micro = min(job.config.placement.micro_batch_trajectories or share, share)
    return SFTConfig(
        output_dir=str(job.work / "trainer"),
        seed=job.seed,
        max_length=None,
        completion_only_loss=True,
        num_train_epochs=settings.epochs,
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=max(1, share // micro),
        learning_rate=settings.learning_rate,
        lr_scheduler_type="constant_with_warmup" if settings.schedule == "constant" else settings.schedule,
        warmup_steps=math.floor(settings.warmup_ratio * updates),
        weight_decay=settings.weight_decay,
        max_grad_norm=settings.max_grad_norm,
        bf16=job.config.policy.dtype == "bfloat16",
        gradient_checkpointing=job.config.placement.gradient_checkpointing,
        use_liger_kernel=job.config.placement.liger_kernels,
        save_strategy="no",
        logging_steps=1,
        logging_nan_inf_filter=False,
        report_to="none",  # its axis would be optimizer updates; see trackers
        disable_tqdm=True,
        ddp_timeout=math.ceil(60 * job.config.placement.collective_timeout_minutes),
        use_cpu=job.device == "cpu",
        trust_remote_code=job.config.policy.trust_remote_code,
    )


def _dataset(prompt_ids: list[list[int]], completion_ids: list[list[int]], silent: int) -> Any:
    """The trajectories, and after them so many rows that carry no loss."""
    from datasets import Dataset

    rows = list(zip(prompt_ids, completion_ids, strict=True))
    shortest = min((prompt + completion for prompt, completion in rows), key=len)
    ids = [prompt + completion for prompt, completion in rows]
    masks = [[0] * len(prompt) + [1] * len(completion) for prompt, completion in rows]
    ids += [shortest] * silent
    masks += [[0] * len(shortest)] * silent
    return Dataset.from_dict({"input_ids": ids, "completion_mask": masks})


def _check_lengths(prompt_ids: list[list[int]], completion_ids: list[list[int]], context: int | None) -> None:
    longest = max(len(prompt) + len(completion) for prompt, completion in zip(prompt_ids, completion_ids, strict=True))
    if context is not None and longest > context:
        raise StageError(
            f"a trajectory of {longest} tokens exceeds the model's context of {context}",
            field="explore.max_completion_tokens",
            fix="shorten the budgets so that prompt + completion fit",
        )


class _Losses:
    """The loss of every update, as the trainer logs it."""

    def __init__(self, tell: Callable[[dict[str, Any]], None], updates: int) -> None:
        self.values: list[float] = []
        self._tell = tell
        self._updates = updates

    def callback(self) -> Any:
        from transformers import TrainerCallback

        losses = self

        class Watch(TrainerCallback):  # type: ignore[misc]
            def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **unused: Any) -> None:
                if logs and "loss" in logs:
                    losses.values.append(float(logs["loss"]))
                    losses._tell({"step": state.global_step, "steps": losses._updates, "loss": losses.values[-1]})

        return Watch()
