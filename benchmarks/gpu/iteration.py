"""One iteration of a run on a policy that is made on the spot, stage by stage."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.policy import HALF, ONE_AND_A_HALF, SMALL, Recipe, made, problem_file
from rloop_core.config import Config

STAGES = ("explore", "harvest", "filter", "rft", "evaluate")
_NAMES = {SMALL: "small", HALF: "0.5b", ONE_AND_A_HALF: "1.5b"}


def ready_policy(bench: Bench, recipe: Recipe) -> tuple[Path, Path]:
    """(policy, problems that it was taught on); small runs take the small policy."""
    chosen = SMALL if bench.small else recipe
    problems = problem_file(bench.out / "problems.jsonl", 10, 24 if bench.small else 64)
    return made(bench.out / "policies" / _NAMES[chosen], chosen, "boxed", problems, bench.device), problems


def iteration_config(
    bench: Bench, file: str, recipe: Recipe, changes: Mapping[str, Any], store: str = "store"
) -> Config:
    """A run config of the repository, cut to one iteration of few RL steps in which all stages have work.

    Args:
        bench: The call.
        file: The run config.
        recipe: Its policy.
        changes: Fields on top of the cut.
        store: Folder of the store within the part's.
    """
    policy, problems = ready_policy(bench, recipe)
    held_out = problem_file(bench.folder / "held-out.jsonl", 70, 8)
    cut: dict[str, Any] = {
        "iterations": 1,
        "policy.path": str(policy),
        "problems": {"source": str(problems)},
        "prompt.max_tokens": 256,
        "explore.steps": 2,
        "explore.overlong.buffer_tokens": 0,
        "explore.dynamic_sampling": {"max_generation_batches": 2, "when_exhausted": "update-with-fewer"},
        "filter.threshold": 0.95,
        "filter.min_attempts": 1,
        "rft.batch_trajectories": 8,  # equal answers are one trajectory, so there is but one a problem
        "evaluate.sets": [{"source": str(held_out), "name": "held-out"}],
        "evaluate.samples": 8,
        "evaluate.k": [1, 8],
        **bench.engines,
    }
    return bench.config(file, {**cut, **(_TINY if bench.small else {}), **changes}, store)


_TINY: dict[str, Any] = {
    "explore.problems_per_step": 4,
    "explore.group_size": 4,
    "explore.mini_batch_rollouts": 8,
    "explore.max_completion_tokens": 16,
    "explore.learning_rate": 1e-4,
    "rft.batch_trajectories": 4,
    "rft.learning_rate": 1e-3,
    "evaluate.samples": 4,
    "evaluate.k": [1],
    "placement.threads": 1,
    "placement.micro_batch_rollouts": 8,
    "placement.micro_batch_trajectories": 4,
    "placement.generation_batch": 64,
}
