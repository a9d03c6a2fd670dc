"""Which stages a run has, in an order in which they can be computed, and which artifacts each reads."""

from __future__ import annotations

from rloop_core.config import Config
from rloop_core.stages.job import STAGES
from rloop_core.store import BASE_ITERATION


def stages_of(config: Config) -> list[tuple[int, str]]:
    """Every (iteration, stage) that the config asks for; iteration -1 evaluates theta_0."""
    evaluates = bool(config.evaluate.sets)
    base = [(BASE_ITERATION, "evaluate")] if evaluates and config.evaluate.base else []
    wanted = {"explore", "evaluate"} if config.arm == "vanilla-rl" else set(STAGES)
    names = [name for name in STAGES if name in wanted and (evaluates or name != "evaluate")]
    return base + [(iteration, name) for iteration in range(config.iterations) for name in names]


def producers(config: Config, stage: str, iteration: int) -> list[tuple[int, str]]:
    """The (iteration, stage) whose artifacts a stage reads; rft of iteration -1 stands for theta_0."""
    return {
        "explore": [(iteration - 1, "rft")],
        "harvest": [(iteration, "explore")],
        "filter": [(iteration, "harvest")],
        "rft": [(iteration - 1, "rft"), (iteration, "filter")],
        "evaluate": [
            (iteration, config.policy_stage),
            *([(iteration, "explore")] if config.evaluate.snapshots else []),
        ],
    }[stage]
