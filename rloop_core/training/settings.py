"""DAPO's hyperparameters in TRL's words."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rloop_core.config import Config

if TYPE_CHECKING:
    from trl import GRPOConfig


def grpo_config(config: Config, output_dir: Path, *, seed: int, world_size: int, use_cpu: bool) -> GRPOConfig:
    """GRPOConfig of one exploration phase.

    J = (1 / sum|o_i|) sum_i sum_t min(r A, clip(r, 1 - clip_low, 1 + clip_high) A), A = (R - mean) / std per group,
    no KL term (DAPO, equations 8 to 12).

    Args:
        config: The run's config.
        output_dir: Where TRL keeps resumable checkpoints.
        seed: Seed of this phase.
        world_size: Ranks that share the work.
        use_cpu: Keep off accelerators even where there is one.
    """
    from trl import GRPOConfig

    explore = config.explore
    micro = config.placement.micro_batch_rollouts or explore.mini_batch_rollouts // world_size
    accumulation = explore.mini_batch_rollouts // (micro * world_size)
    return GRPOConfig(
        output_dir=str(output_dir),
        seed=seed,
        max_steps=explore.steps * explore.updates_per_step,
        num_generations=explore.group_size,
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=accumulation,
        steps_per_generation=accumulation * explore.updates_per_step,
        max_completion_length=explore.max_completion_tokens,
        temperature=explore.temperature,
        top_p=1.0,
        top_k=0,
        loss_type="dapo",
        beta=0.0,
        epsilon=explore.clip_low,
        epsilon_high=explore.clip_high,
        scale_rewards="group",
        reward_weights=reward_weights(config),
        learning_rate=explore.learning_rate,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=explore.warmup_updates,
        weight_decay=explore.weight_decay,
        max_grad_norm=explore.max_grad_norm,
        bf16=config.policy.dtype == "bfloat16",
        gradient_checkpointing=config.placement.gradient_checkpointing,
        use_liger_kernel=config.placement.liger_kernels,
        save_strategy="steps",
        save_steps=config.placement.checkpoint_every * explore.updates_per_step,
        save_total_limit=2,
        logging_steps=1,
        logging_nan_inf_filter=False,
        report_to="none",  # its axis would be optimizer updates; see trackers
        disable_tqdm=True,
        ddp_timeout=math.ceil(60 * config.placement.collective_timeout_minutes),
        use_cpu=use_cpu,
        trust_remote_code=config.policy.trust_remote_code,
        remove_unused_columns=False,
        **(_vllm(config) if explore.engine == "vllm" else {}),
    )


def _vllm(config: Config) -> dict[str, Any]:
    """vLLM, its mismatch with the trainer corrected token by token.

    w_t = min(pi_trainer(o_t) / pi_vllm(o_t), importance_cap) weighs each token's loss (truncated importance sampling).
    TRL's default weighs by the ratio of whole sequences instead, which vanishes on long completions.
    """
    return {
        "use_vllm": True,
        **(_served(config) if config.placement.vllm.server else _colocated(config)),
        "vllm_importance_sampling_correction": True,
        "vllm_importance_sampling_mode": "token_truncate",
        "vllm_importance_sampling_clip_max": config.explore.importance_cap,
    }


def _colocated(config: Config) -> dict[str, Any]:
    """On the trainer's own GPUs, asleep during updates."""
    placement = config.placement.vllm
    return {
        "vllm_mode": "colocate",
        "vllm_enable_sleep_mode": True,
        "vllm_gpu_memory_utilization": placement.colocated_memory,
        "vllm_tensor_parallel_size": placement.tensor_parallel,
        "vllm_max_model_length": config.prompt.max_tokens + config.explore.max_completion_tokens,
    }


def _served(config: Config) -> dict[str, Any]:
    """On a server's GPUs; rank 0 alone talks to it."""
    placement = config.placement.vllm
    return {
        "vllm_mode": "server",
        "vllm_server_base_url": (placement.server or "").rstrip("/"),
        "vllm_group_port": placement.weights_port,
    }


def reward_weights(config: Config) -> list[float]:
    """Weights of the answer's score and, where it is on, of the soft overlong punishment."""
    return [1.0, config.explore.overlong.penalty] if config.explore.overlong.buffer_tokens else [1.0]
