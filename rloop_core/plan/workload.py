"""A run's counts of rollouts, updates, evaluated samples and bytes, from its config."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rloop_core.config import Config, ProblemSource
from rloop_core.plan.models import ModelShape, element_bytes
from rloop_core.problems.registry import PROCEDURAL_PREFIX, hub_source

GENERATED = 100
"""Problems that a generator makes if the config does not say."""
MEAN_SHARE = 0.5
"""Assumed mean completion length as a share of the budget."""
MEAN_PROMPT = 150
"""Assumed mean prompt in tokens, unless the budget is smaller."""
BYTES_A_TOKEN_STORED = 3.5
"""Parquet (zstd) bytes of one completion token: its id about 2, its text about 1.5. Estimated."""


@dataclass(frozen=True)
class Workload:
    """Counts of one iteration, unless stated otherwise.

    Attributes:
        problems: Training problems; None if unknown.
        rollouts: Recorded rollouts, one generation batch an RL step.
        rollouts_at_most: Rollouts with every generation batch that dynamic sampling may use.
        updates: Optimizer updates of explore.
        snapshots: Snapshots that explore keeps.
        snapshot_rollouts: Rollouts that harvest samples from snapshots; None if unknown.
        expert_at_most: Largest expert set; None if unknown.
        evaluated: Set label to completions of one policy; None for a set of unknown size.
        policies_evaluated: Over the whole run.
        prompt_tokens, completion_tokens: Assumed means.
        evaluation_budgets: Set label to completion budget in tokens.
    """

    problems: int | None
    rollouts: int
    rollouts_at_most: int
    updates: int
    snapshots: int
    snapshot_rollouts: int | None
    expert_at_most: int | None
    evaluated: dict[str, int | None]
    policies_evaluated: int
    prompt_tokens: float
    completion_tokens: float
    evaluation_budgets: dict[str, int]

    @property
    def evaluated_tokens_at_most(self) -> float:
        """Completion tokens of one policy over the sets of known size, if every completion fills its budget."""
        return sum((count or 0) * self.evaluation_budgets[label] for label, count in self.evaluated.items())

    @property
    def evaluated_tokens(self) -> float:
        """The same with completions of the assumed mean length."""
        return MEAN_SHARE * self.evaluated_tokens_at_most


def workload_of(config: Config) -> Workload:
    """Count what the config asks for."""
    explore = config.explore
    problems = count_problems(config.problems)
    rollouts = explore.steps * explore.rollouts_per_step
    batches = explore.dynamic_sampling.max_generation_batches if explore.dynamic_sampling.enabled else 1
    snapshots = explore.steps // explore.snapshot_every if explore.snapshot_every else 0
    sizes = {source.label: count_problems(source) for source in config.evaluate.sets}
    per_problem = config.harvest.snapshot_samples * snapshots
    phase = 1 + (snapshots if config.evaluate.snapshots else 0)
    cap = config.filter.max_per_problem
    return Workload(
        problems=problems,
        rollouts=rollouts,
        rollouts_at_most=rollouts * batches,
        updates=explore.steps * explore.updates_per_step,
        snapshots=snapshots,
        snapshot_rollouts=0 if not per_problem else problems * per_problem if problems else None,
        expert_at_most=min(rollouts, cap * problems) if cap and problems else None if cap else rollouts,
        evaluated={label: size * config.evaluate.of(label).samples if size else None for label, size in sizes.items()},
        policies_evaluated=(config.iterations * phase + config.evaluate.base) if sizes else 0,
        prompt_tokens=min(MEAN_PROMPT, config.prompt.max_tokens),
        completion_tokens=MEAN_SHARE * explore.max_completion_tokens,
        evaluation_budgets={label: config.evaluation_tokens_of(label) for label in sizes},
    )


def count_problems(source: ProblemSource) -> int | None:
    """Return a set's number of problems if it is known without loading it: by name, generator, or lines of a file."""
    known = hub_source(source.source)
    size = known.rows.get(source.split or known.split)
    if source.source.startswith(PROCEDURAL_PREFIX):
        size = source.size or GENERATED
    elif size is None and source.source.endswith((".jsonl", ".ndjson")) and Path(source.source).expanduser().is_file():
        with open(Path(source.source).expanduser(), "rb") as stream:
            size = sum(1 for line in stream if line.strip())
    if source.limit:
        return min(size, source.limit) if size else source.limit
    return size


def storage_bytes(config: Config, work: Workload, shape: ModelShape | None) -> dict[str, float]:
    """Return the bytes stored over the whole run by kind; weights only if the policy's size is known."""
    iterations = config.iterations
    rollouts = (work.rollouts + (work.snapshot_rollouts or 0)) * iterations
    stored = {
        # Explore's shards and harvest's consolidated copy.
        "trajectories": rollouts * work.completion_tokens * BYTES_A_TOKEN_STORED * 2,
        "evaluation samples": work.policies_evaluated * work.evaluated_tokens * BYTES_A_TOKEN_STORED,
    }
    if shape:
        stored["policies"] = iterations * (2 + work.snapshots) * shape.parameters * element_bytes(config)
        # Weights and two moments in float32, of the last two checkpoints; removed when the stage is done.
        stored["checkpoints (local scratch)"] = 2 * 12 * shape.parameters
    return stored
