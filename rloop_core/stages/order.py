"""The stages of a run in an order in which they can be computed, and the artifacts that each reads."""

from __future__ import annotations

from rloop_core.config import Config
from rloop_core.stages.job import STAGES
from rloop_core.store import BASE_ITERATION


def stages_of(config: Config) -> list[tuple[int, str]]:
    """Return every (iteration, stage) of a run; iteration -1 evaluates theta_0."""
    evaluates = bool(config.evaluate.sets)
    base = [(BASE_ITERATION, "evaluate")] if evaluates and config.evaluate.base else []
    wanted = {"explore", "evaluate"} if config.arm == "vanilla-rl" else set(STAGES)
    names = [name for name in STAGES if name in wanted and (evaluates or name != "evaluate")]
    return base + [(iteration, name) for iteration in range(config.iterations) for name in names]


def producers(config: Config, stage: str, iteration: int) -> list[tuple[int, str]]:
    """Return each (iteration, stage) whose artifact a stage reads; iteration -1 stands for theta_0."""
    return {
        "explore": [explored_from(config, iteration)],
        "harvest": [(iteration, "explore")],
        "filter": [(iteration, "harvest")],
        "rft": [refined_from(config, iteration), (iteration, "filter")],
        "evaluate": [
            (iteration, config.policy_stage),
            *([(iteration, "explore")] if config.evaluate.snapshots else []),
        ],
    }[stage]


def explored_from(config: Config, iteration: int) -> tuple[int, str]:
    """Return the (iteration, stage) that made the policy exploration starts from: theta_i, except in an ablation."""
    return iteration - 1, "explore" if config.explore.start == "rl-endpoint" else config.policy_stage


def refined_from(config: Config, iteration: int) -> tuple[int, str]:
    """Return the (iteration, stage) that made the policy RFT starts from: theta_i; the RL endpoint in an ablation."""
    return (iteration, "explore") if config.rft.start == "rl-endpoint" else (iteration - 1, config.policy_stage)
