"""Forgetting of every arm beside what chance alone would give, over seeds and problems.

For two policies of a run, an earlier and a later one, a problem is forgotten when the first solves it and the second
does not. The null is the chance of that if both were one policy (see results/analysis/transitions.py), problem by
problem, so that observed minus null is paired with itself, and with the other arm's, over problems and seeds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from rloop_core.evaluation.metrics import Floats
from rloop_core.evaluation.outcomes import Outcomes
from rloop_core.results.analysis.transitions import SolvedRule, lost_by_chance
from rloop_core.results.study.intervals import Effect, crossed_effects
from rloop_core.results.study.record import Policy, StudyRecord
from rloop_core.results.tables import Table, ends_of

PATHS = {
    "between snapshots": "all pairs of RL snapshots, an earlier and a later one, of one phase or of two",
    "between iterations": "all pairs of the base and what each iteration ended with",
}
"""Pairs of policies that a study compares; those of vanilla RL are at the same RL steps."""
BLOCKS = (WITHIN, ACROSS) = ("within an iteration", "across iterations")
"""Pairs of RL snapshots of one or of two of RLoop's iterations (paper section 5.4, figure 5a), in both arms at the same
RL steps: what a comparison compares."""
_EFFECTS = ("observed", "null", "excess", "difference", "excess_difference")


@dataclass(frozen=True)
class Forgetting:
    """One arm on one set.

    Attributes:
        set, arm, path: The problem set, the arm's short name, and a key of `PATHS` or `BLOCKS`.
        steps: RL steps of the policies.
        seeds: Seeds that the arm's own means rest on.
        observed: Mean share of problems that are lost from an earlier to a later policy.
        null: The same if the two were one policy.
        excess: Observed minus null.
        difference: The reference's observed share minus this arm's: positive where this arm forgets less. None for the
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


def forgetting(
    record: StudyRecord, rule: SolvedRule, labels: Iterable[str], paths: Iterable[str] = tuple(PATHS)
) -> list[Forgetting]:
    """Return every arm's forgetting by set and path; what takes more policies than the runs have is left out."""
    return [one for label in labels for path in paths for one in _of_path(record, label, path, rule)]


def forgetting_table(titles: Mapping[str, str], rows: Iterable[Forgetting]) -> Table:
    """Return forgetting for CSV: a row a set, path and arm, with each effect and its interval."""
    columns = ("set", "path", "arm", *(f"{name}{end}" for name in _EFFECTS for end in ("", "_low", "_high")))

    def cells(row: Forgetting) -> tuple[Any, ...]:
        effects = (getattr(row, name) for name in _EFFECTS)
        ends = (end for one in effects for end in (ends_of(one) if one else (None, None, None)))
        return (row.set, row.path, titles[row.arm], *ends)

    return Table("forgetting", columns, tuple(map(cells, rows)))


def lost_and_null(
    checkpoints: Sequence[Outcomes], rule: SolvedRule, pairs: Sequence[tuple[int, int]] | None = None
) -> tuple[Floats, Floats]:
    """Return each problem's mean loss over pairs of checkpoints, and that by chance; shape [problems] each.

    `pairs` holds the indices of an earlier and a later checkpoint; None takes all pairs.
    """
    n, c = (np.stack([getattr(one, name) for one in checkpoints]) for name in ("n", "c"))
    solved = rule(n, c)
    first, second = np.array(pairs or list(combinations(range(len(checkpoints)), 2))).T
    observed = (solved[first] & ~solved[second]).mean(axis=0)
    # Equal counts have equal chances, and there are few different ones.
    triples = np.stack([n[first], n[second], c[first] + c[second]]).reshape(3, -1)
    kinds, inverse = np.unique(triples, axis=1, return_inverse=True)
    chances = lost_by_chance(kinds[0], kinds[1], kinds[2], rule)[inverse.ravel()].reshape(len(first), -1)
    return np.asarray(observed, dtype=np.float64), chances.mean(axis=0)


def _of_path(record: StudyRecord, label: str, path: str, rule: SolvedRule) -> list[Forgetting]:
    runs = {
        (arm, seed): policies
        for arm in record.titles
        for seed in record.final_side(label, arm).policies
        if len(policies := _policies(record, label, arm, seed, path)) > 1
    }
    # The two arms that the study is about decide at which steps; an ablation without these is left out.
    leading = [set(policies) for (arm, _), policies in runs.items() if arm in record.pair]
    steps = tuple(sorted(set.intersection(*leading))) if leading else ()
    pairs = _pairs(record, steps, path)
    if not pairs:
        return []
    tables: dict[str, dict[int, Floats]] = {}
    for (arm, seed), policies in runs.items():
        if policies.keys() >= set(steps):
            checkpoints = record.checkpoints(label, arm, seed)
            observed, null = lost_and_null([checkpoints[policies[step]].outcomes for step in steps], rule, pairs)
            tables.setdefault(arm, {})[seed] = np.stack([observed, null, observed - null])

    def effects(table: Floats, least: float = -1.0) -> list[Effect]:
        return crossed_effects(table, within=(least, 1.0), seed=record.resampling)

    reference = tables.get(record.reference, {})
    rows = []
    for arm, by_seed in tables.items():
        seeds = [seed for seed in record.seeds if seed in by_seed]
        table = np.stack([by_seed[seed] for seed in seeds], axis=1)
        (share, chance), (excess,) = effects(table[:2], least=0.0), effects(table[2:])
        paired = [seed for seed in seeds if seed in reference and arm != record.reference]
        differences: list[Effect | None] = [None, None, None]
        if paired:
            differences[:] = effects(np.stack([reference[seed] - by_seed[seed] for seed in paired], axis=1))
        rows.append(
            Forgetting(label, arm, path, steps, tuple(seeds), share, chance, excess, differences[0], differences[2],
                       tuple(paired))
        )  # fmt: skip
    return rows


def _pairs(record: StudyRecord, steps: Sequence[int], path: str) -> list[tuple[int, int]]:
    """Return the indices of earlier and later policies that a path compares."""
    pairs = list(combinations(range(len(steps)), 2))
    if path not in BLOCKS:
        return pairs
    phase = record.runs(record.main)[0].run.config.explore.steps
    iteration = [(step - 1) // phase for step in steps]
    return [(i, j) for i, j in pairs if (iteration[i] == iteration[j]) == (path == WITHIN)]


def _policies(record: StudyRecord, label: str, arm: str, seed: int, path: str) -> dict[int, Policy]:
    """Return a run's policies on a path, by RL step."""
    policies = record.checkpoints(label, arm, seed)
    if path != "between iterations":
        return {one.step: one for one in policies if one.kind in ("snapshot", "endpoint")}
    vanilla = record.arms[arm, seed].run.config.arm == "vanilla-rl"
    return {one.step: one for one in policies if vanilla or one.kind in ("base", "theta")}
