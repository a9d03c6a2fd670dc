"""Trainers that are timed RL step by RL step: rloop's, and TRL's own on the very problems that rloop's will draw."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any


def bare_trainer(job: Any, problems: Sequence[Any], verifier: Any) -> Any:
    """TRL's own trainer under the settings of an `ExploreJob`, with its rollouts judged alike."""
    from datasets import Dataset
    from trl import GRPOTrainer

    from rloop_core.rollout.policy import eos_token_ids, load_model, load_tokenizer
    from rloop_core.training.adapters import loading_dtype
    from rloop_core.training.groups import ProblemStream
    from rloop_core.training.rollouts import AnswerReward
    from rloop_core.training.settings import grpo_config

    explore = job.config.explore
    order = ProblemStream(len(problems), job.seed).take(explore.steps * explore.problems_per_step)
    rows = [{"prompt": problems[index].prompt, "gold": problems[index].gold} for index in order]
    args = grpo_config(job.config, job.work / "bare", seed=job.seed, world_size=1, use_cpu=job.device == "cpu")
    args.shuffle_dataset = False
    tokenizer = load_tokenizer(job.policy)
    model = load_model(job.policy, dtype=loading_dtype(job.config), device=job.device)
    reward = AnswerReward(verifier, explore.reward_correct, explore.reward_wrong, eos_token_ids(model, tokenizer))
    return GRPOTrainer(
        model=model,
        reward_funcs=[reward],
        args=args,
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
    )


class Clock:
    """Times each RL step of one trainer, in its turns.

    Args:
        updates_per_step: Optimizer updates that make up an RL step.
        wait: Called before an RL step; returns when it is this trainer's turn.
        pass_on: Called with the seconds of an RL step.
    """

    def __init__(self, updates_per_step: int, wait: Callable[[], None], pass_on: Callable[[float], None]) -> None:
        self.seconds: list[float] = []
        self.lengths: list[float] = []
        """Mean completion of each RL step, in tokens, as TRL logs it."""
        self._updates = updates_per_step
        self._wait, self._pass_on = wait, pass_on
        self._started = 0.0

    def callback(self) -> Any:
        import torch
        from transformers import TrainerCallback

        clock = self

        def now() -> float:
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            return time.perf_counter()

        class Watch(TrainerCallback):  # type: ignore[misc]
            def on_step_begin(self, args: Any, state: Any, control: Any, **unused: Any) -> None:
                if state.global_step % clock._updates == 0:
                    clock._wait()
                    torch.manual_seed(state.global_step)
                    clock._started = now()

            def on_step_end(self, args: Any, state: Any, control: Any, **unused: Any) -> None:
                if state.global_step % clock._updates == 0:
                    clock.seconds.append(now() - clock._started)
                    clock._pass_on(clock.seconds[-1])

            def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **unused: Any) -> None:
                if logs and "completions/mean_length" in logs:
                    clock.lengths.append(float(logs["completions/mean_length"]))

        return Watch()
