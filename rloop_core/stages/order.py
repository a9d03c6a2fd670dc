"""The stages of a run in an order in which they can be computed, and the artifacts that each reads (Algorithm 1)."""

from __future__ import annotations

from rloop_core.config import Config
from rloop_core.errors import StageError
from rloop_core.stages.job import STAGES
from rloop_core.store import BASE_ITERATION


def stages_of(config: Config) -> list[tuple[int, str]]:
    """Return every (iteration, stage) of a run; iteration -1 evaluates theta_0."""
    evaluates = bool(config.evaluate.sets)
    base = [(BASE_ITERATION, "evaluate")] if evaluates and config.evaluate.base else []
    wanted = {"explore", "evaluate"} if config.arm == "vanilla-rl" else set(STAGES)
    names = [name for name in STAGES if name in wanted and (evaluates or name != "evaluate")]
    return base + [(iteration, name) for iteration in range(config.iterations) for name in names]


def sources_of(config: Config, stage: str, iteration: int) -> list[tuple[str, int, str]]:
    """Return (role, iteration, stage) of each artifact that a stage reads; iteration -1 stands for theta_0.

    Exploration and RFT both start from theta_i, except in the ablations that start from the RL endpoint.
    """
    if stage == "explore":
        source = "explore" if config.explore.start == "rl-endpoint" else config.policy_stage
        return [("policy", iteration - 1, source)]
    if stage == "harvest":
        return [("trajectories", iteration, "explore")]
    if stage == "filter":
        return [("trajectories", iteration, "harvest")]
    if stage == "rft":
        endpoint = config.rft.start == "rl-endpoint"
        policy = (iteration, "explore") if endpoint else (iteration - 1, config.policy_stage)
        return [("policy", *policy), ("experts", iteration, "filter")]
    if stage == "evaluate":
        snapshots = [("explored", iteration, "explore")] if iteration >= 0 and config.evaluate.snapshots else []
        return [("policy", iteration, config.policy_stage), *snapshots]
    raise StageError(f"there is no stage {stage!r}", field="stage")


def producers(config: Config, stage: str, iteration: int) -> list[tuple[int, str]]:
    """Return the (iteration, stage) of each artifact that a stage reads; iteration -1 stands for theta_0."""
    return [(number, name) for _, number, name in sources_of(config, stage, iteration)]
