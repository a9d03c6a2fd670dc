"""Forgetting of every arm beside what chance alone would give, over seeds and problems.

For two policies of a run, an earlier and a later one, a problem is forgotten when the first solves it and the second
does not. The null is the chance of that if both were one policy (see results/analysis/transitions.py), problem by
problem, so that observed minus null is paired with itself, and with the other arm's, over problems and seeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from rloop_core.evaluation.metrics import Floats
from rloop_core.evaluation.outcomes import Outcomes
from rloop_core.results.analysis.transitions import SolvedRule, lost_by_chance
from rloop_core.results.study.effects import Effect, crossed_effects
from rloop_core.results.study.record import Policy, StudyRecord

PATHS = {
    "between snapshots": "all pairs of RL snapshots, an earlier and a later one, of one phase or of two",
    "between iterations": "all pairs of the base and what each iteration ended with",
}
"""Which policies are compared; vanilla RL's are those at the same RL steps."""


@dataclass(frozen=True)
class Forgetting:
    """One arm on one set.

    Attributes:
        set, arm, path: Where; `path` is a key of `PATHS`.
        steps: RL steps of the policies.
        seeds: Seeds that the arm's own means rest on.
        observed: Mean share of problems that are lost from an earlier to a later policy.
        null: What it would be if the two were one policy.
        excess: The one minus the other.
        difference: The reference's observed share minus this arm's; positive where this arm forgets less. None for the
            reference itself.
        excess_difference: The same of the excess.
        paired: Seeds that the differences rest on.
    """

    set: str
    arm: str
    path: str
    steps: tuple[int, ...]
    seeds: tuple[int, ...]
    observed: Effect
    null: Effect
    excess: Effect
    difference: Effect | None
    excess_difference: Effect | None
    paired: tuple[int, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {key: one.to_dict() if isinstance(one, Effect) else one for key, one in self.__dict__.items()}


def forgetting(record: StudyRecord, rule: SolvedRule) -> list[Forgetting]:
    """Every arm's, by set and path; what takes more than the runs have is left out."""
    return [one for label in record.sets for path in PATHS for one in _of_path(record, label, path, rule)]


def lost_and_null(checkpoints: Sequence[Outcomes], rule: SolvedRule) -> tuple[Floats, Floats]:
    """Of each problem, how often it is lost over ordered pairs of checkpoints, and how often by chance; [problems]."""
    n, c = (np.stack([getattr(one, name) for one in checkpoints]) for name in ("n", "c"))
    solved = rule(n, c)
    first, second = (np.array(side) for side in zip(*combinations(range(len(checkpoints)), 2), strict=True))
    observed = (solved[first] & ~solved[second]).mean(axis=0)
    # Equal counts have equal chances, and there are few different ones.
    triples = np.stack([n[first], n[second], c[first] + c[second]]).reshape(3, -1)
    kinds, place = np.unique(triples, axis=1, return_inverse=True)
    chances = lost_by_chance(kinds[0], kinds[1], kinds[2], rule)[place.ravel()].reshape(len(first), -1)
    return np.asarray(observed, dtype=np.float64), chances.mean(axis=0)


def _of_path(record: StudyRecord, label: str, path: str, rule: SolvedRule) -> list[Forgetting]:
    runs = {
        (arm, seed): own
        for arm in record.titles
        for seed in record.at(label, arm, record.final(label, arm)).policies
        if len(own := _policies(record, label, arm, seed, path)) > 1
    }
    # The two arms that the study is about decide at which steps; an ablation without these has no part.
    leading = [own for (arm, _), own in runs.items() if arm in (record.study.main, record.study.reference)]
    steps = sorted(set.intersection(*map(set, leading))) if leading else []
    runs = {key: own for key, own in runs.items() if own.keys() >= set(steps)}
    if len(steps) < 2:
        return []
    tables: dict[str, dict[int, Floats]] = {}
    for (arm, seed), own in runs.items():
        checkpoints = record.checkpoints(label, arm, seed)
        observed, null = lost_and_null([checkpoints[own[step]].outcomes for step in steps], rule)
        tables.setdefault(arm, {})[seed] = np.stack([observed, null, observed - null])
    reference = tables.get(record.study.reference, {})
    found = []
    for arm, own_tables in tables.items():
        seeds = [seed for seed in record.study.seeds if seed in own_tables]
        both = crossed_effects(np.stack([own_tables[seed][:2] for seed in seeds], axis=1), within=(0.0, 1.0))
        (excess,) = crossed_effects(np.stack([own_tables[seed][2:] for seed in seeds], axis=1))
        paired = [seed for seed in seeds if seed in reference] if arm != record.study.reference else []
        between: list[Effect | None] = [None, None, None]
        if paired:
            between[:] = crossed_effects(np.stack([reference[seed] - own_tables[seed] for seed in paired], axis=1))
        found.append(
            Forgetting(
                set=label,
                arm=arm,
                path=path,
                steps=tuple(steps),
                seeds=tuple(seeds),
                observed=both[0],
                null=both[1],
                excess=excess,
                difference=between[0],
                excess_difference=between[2],
                paired=tuple(paired),
            )
        )
    return found


def _policies(record: StudyRecord, label: str, arm: str, seed: int, path: str) -> dict[int, Policy]:
    """A run's policies on a path, by RL step."""
    own = record.checkpoints(label, arm, seed)
    if path == "between snapshots":
        return {one.step: one for one in own if one.kind in ("snapshot", "endpoint")}
    vanilla = record.arms[arm, seed].run.config.arm == "vanilla-rl"
    return {one.step: one for one in own if vanilla or one.kind in ("base", "theta")}
