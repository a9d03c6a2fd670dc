"""Exploration with recording against bare TRL, both with vLLM on the trainer's GPU, RL step by RL step in turns.

Each trainer has a process of its own, since vLLM can be colocated only once in one.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.gpu.check import Check, Line, NotMeasured, Part
from benchmarks.gpu.policy import HALF, ready_policy
from benchmarks.trainers import FROZEN, Series, compare_steps, time_in_turns
from rloop_core.config import Config

BAR = 1.03
WARM_UP, STEPS = 2, 8


def run(check: Check) -> None:
    """Time both trainers; the answer is the median of their ratios."""
    if check.device == "cuda" and not check.in_loop_vllm and not check.small:
        raise NotMeasured("vLLM is not installed")
    policy, problems = ready_policy(check, HALF)
    config = explore_config(check, policy, problems, WARM_UP + (3 if check.small else STEPS))
    engine = "vLLM colocated" if check.in_loop_vllm else "transformers, for vLLM cannot follow a trainer on a CPU"

    def judge(seconds: Series, note: str = "") -> None:
        if len(seconds["recorded"]) > WARM_UP:
            ratio, figures = compare_steps(seconds, "recorded", "bare", WARM_UP)
            check.judge_speed("ratio", ratio <= BAR, f"{ratio:.3f} x; {figures}", engine + note)

    seconds, figures = time_in_turns(("bare", "recorded"), config, policy, check.folder, check.device, judge)
    bare, ours = figures["bare"], figures["recorded"]
    alike = "the same completions" if bare.lengths == ours.lengths else "completions of their own"
    judge(seconds, f"; both drew {alike}; {ours.padding:.2f} and {bare.padding:.2f} tokens computed for a real one")


def explore_config(check: Check, policy: Path, problems: Path, steps: int) -> Config:
    """Return a config of RL steps of 256 rollouts that learn nothing."""
    return check.config(
        "qwen2.5-0.5b.yaml",
        {
            **FROZEN,
            "policy.path": str(policy),
            "problems": {"source": str(problems)},
            "explore.steps": steps,
            "explore.overlong.buffer_tokens": 0,
            "explore.engine": check.engines["explore.engine"],
            "explore.problems_per_step": 4 if check.small else 16,
            "explore.group_size": 4 if check.small else 16,
            "explore.mini_batch_rollouts": 8 if check.small else 128,
            "explore.max_completion_tokens": 24 if check.small else 512,
            "prompt.max_tokens": 256,
            "evaluate.sets": [],
            "placement.vllm.colocated_memory": 0.3,  # two trainers share the GPU
            "placement.micro_batch_tokens": 1024 if check.small else 16384,
        },
    )


PART = Part(
    "explore",
    "exploration with every rollout recorded against bare TRL, vLLM colocated in both",
    "8 min; 1 min",
    (Line("ratio", "RL step with recording / bare TRL's, median ratio", f"at most {BAR} x"),),
    run,
)
