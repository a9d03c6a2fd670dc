"""Exploration with recording against bare TRL, both with vLLM on the trainer's GPU, RL step by RL step in turns.

Each trainer has a process of its own, since vLLM can be colocated only once in one.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.gpu.bench import Bench, Line, NotMeasured, Part
from benchmarks.gpu.iteration import ready_policy
from benchmarks.gpu.policy import HALF
from benchmarks.trainers import FROZEN, Series, compare_steps, time_in_turns
from rloop_core.config import Config

BAR = 1.03
WARM_UP, STEPS = 2, 8


def run(bench: Bench) -> None:
    """Time both trainers; the answer is the median of their ratios."""
    if bench.device == "cuda" and not bench.in_loop_vllm and not bench.small:
        raise NotMeasured("vLLM is not installed")
    policy, problems = ready_policy(bench, HALF)
    config = explore_config(bench, policy, problems, WARM_UP + (3 if bench.small else STEPS))
    engine = "vLLM colocated" if bench.in_loop_vllm else "transformers, for vLLM cannot follow a trainer on a CPU"

    def judge(seconds: Series, note: str = "") -> None:
        if len(seconds["recorded"]) > WARM_UP:
            ratio, figures = compare_steps(seconds, "recorded", "bare", WARM_UP)
            bench.judge_speed("ratio", ratio <= BAR, f"{ratio:.3f} x; {figures}", engine + note)

    seconds, figures = time_in_turns(("bare", "recorded"), config, policy, bench.folder, bench.device, judge)
    bare, ours = figures["bare"], figures["recorded"]
    alike = "the same completions" if bare.lengths == ours.lengths else "completions of their own"
    judge(seconds, f"; both drew {alike}; {ours.padding:.2f} and {bare.padding:.2f} tokens computed for a real one")


def explore_config(bench: Bench, policy: Path, problems: Path, steps: int) -> Config:
    """Return a config of RL steps of 256 rollouts that learn nothing."""
    return bench.config(
        "qwen2.5-0.5b.yaml",
        {
            **FROZEN,
            "policy.path": str(policy),
            "problems": {"source": str(problems)},
            "explore.steps": steps,
            "explore.overlong.buffer_tokens": 0,
            "explore.engine": bench.engines["explore.engine"],
            "explore.problems_per_step": 4 if bench.small else 16,
            "explore.group_size": 4 if bench.small else 16,
            "explore.mini_batch_rollouts": 8 if bench.small else 128,
            "explore.max_completion_tokens": 24 if bench.small else 512,
            "prompt.max_tokens": 256,
            "evaluate.sets": [],
            "placement.vllm.colocated_memory": 0.3,  # two trainers share the GPU
            "placement.micro_batch_tokens": 1024 if bench.small else 16384,
        },
    )


PART = Part(
    "explore",
    "exploration with every rollout recorded against bare TRL, vLLM colocated in both",
    "8 min; 1 min",
    (Line("ratio", "RL step with recording / bare TRL's, median ratio", f"at most {BAR} x"),),
    run,
)
