"""One iteration of a run, cut to few RL steps, on a policy that is made on the spot."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.policy import HALF, ONE_AND_A_HALF, SMALL, Recipe, cached_policy, problem_file
from rloop_core.config import Config

STAGES = ("explore", "harvest", "filter", "rft", "evaluate")
_FOLDERS = {SMALL: "small", HALF: "0.5b", ONE_AND_A_HALF: "1.5b"}
_CUT: dict[str, Any] = {
    "iterations": 1,
    "prompt.max_tokens": 256,
    "explore.steps": 2,
    "explore.overlong.buffer_tokens": 0,
    "explore.dynamic_sampling": {"max_generation_batches": 2, "when_exhausted": "update-with-fewer"},
    "filter.threshold": 0.95,
    "filter.min_attempts": 1,
    "rft.batch_trajectories": 8,  # equal answers are one trajectory, so there is only one a problem
    "evaluate.samples": 8,
    "evaluate.k": [1, 8],
}
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
    "placement.generation_batch": 64,
}


def ready_policy(bench: Bench, recipe: Recipe) -> tuple[Path, Path]:
    """Return a policy and the problems it was taught; small runs take the small policy."""
    chosen = SMALL if bench.small else recipe
    problems = problem_file(bench.out / "problems.jsonl", 10, 24 if bench.small else 64)
    return cached_policy(bench.out / "policies" / _FOLDERS[chosen], chosen, "boxed", problems, bench.device), problems


def iteration_config(
    bench: Bench,
    file: str,
    recipe: Recipe,
    changes: Mapping[str, Any],
    *,
    full: Mapping[str, Any] | None = None,
    store: str = "store",
) -> Config:
    """Return a run config of the repository, cut to one iteration in which all stages have work.

    Args:
        bench: The call.
        file: The run config.
        recipe: Its policy.
        changes: Fields on top of the cut.
        full: Fields that only full-size runs change.
        store: Folder of the store within the part's.
    """
    policy, problems = ready_policy(bench, recipe)
    held_out = problem_file(bench.folder / "held-out.jsonl", 70, 8)
    inputs = {
        "policy.path": str(policy),
        "problems": {"source": str(problems)},
        "evaluate.sets": [{"source": str(held_out), "name": "held-out"}],
    }
    sizes = _TINY if bench.small else full or {}
    return bench.config(file, {**_CUT, **inputs, **bench.engines, **sizes, **changes}, store)
