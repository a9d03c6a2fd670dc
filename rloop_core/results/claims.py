"""The paper's claims, with the sign that it claims, beside what was found; what disagrees comes first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rloop_core.evaluation.metrics import Floats
from rloop_core.results.forgetting import ITERATIONS, SNAPSHOTS, Forgetting
from rloop_core.results.frame import Results, Side
from rloop_core.results.intervals import Effect, crossed_effects
from rloop_core.results.table import ResultTable

OPPOSITE, UNRESOLVED, AS_CLAIMED = "the opposite", "not resolved", "as claimed"
OUTCOMES = (OPPOSITE, UNRESOLVED, AS_CLAIMED)


@dataclass(frozen=True)
class Claim:
    """One claim on one set."""

    claim: str
    """In words."""
    set: str
    quantity: str
    """What was measured: the metric of a difference, in words elsewhere."""
    expected: int
    """1 or -1: the sign that the paper claims."""
    effect: Effect
    """What was found; shares, as fractions."""
    seeds: tuple[int, ...]
    """Seeds that it rests on."""

    @property
    def outcome(self) -> str:
        """One of `OUTCOMES`: what the interval says about the claimed sign."""
        return {self.expected: AS_CLAIMED, -self.expected: OPPOSITE}.get(self.effect.sign, UNRESOLVED)


def claims(results: Results, table: ResultTable, forgotten: Sequence[Forgetting]) -> list[Claim]:
    """Return every claim that there are numbers for: the opposite first, then not resolved, then as claimed."""
    if results.reference is None:
        return []
    titles, rows, ablations = results.titles, list[Claim](), list[Claim]()
    main, reference = (titles[arm] for arm in results.pair)

    def differences(
        label: str, claim: str, arms: tuple[str, str], expected: int, metrics: Sequence[str]
    ) -> list[Claim]:
        row = table.difference(label, *arms)
        return [Claim(claim, label, name, expected, row.cells[name], row.seeds) for name in metrics] if row else []

    for label in results.sets:
        ends = results.ends(label)
        every = [metric for metric in results.metrics[label] if metric in ends or metric.startswith("pass@")]
        rows += differences(label, f"{main} is better than {reference}", (results.main, results.reference), 1, every)
        rows += differences(label, f"{main} is better than the base", (results.main, results.main), 1, ends)
        for arm in results.ablations:
            ablations += differences(label, f"{titles[arm]} is worse than {main}", (arm, results.main), -1, ends)
        rows += _falls(results, label, f"{reference} falls from its peak")
    rows += [
        Claim(f"{main} forgets less than {reference}", one.set, f"beyond chance, {one.path}", 1, one.excess_difference,
              one.paired)
        for one in forgotten
        if one.arm == results.main and one.path in (SNAPSHOTS, ITERATIONS) and one.excess_difference
    ]  # fmt: skip
    return sorted([*rows, *ablations], key=lambda claim: OUTCOMES.index(claim.outcome))


def _falls(results: Results, label: str, claim: str) -> list[Claim]:
    """Return the end of vanilla RL minus its peak, for avg@n and pass@k.

    Without an evaluated policy between base and end there is no claim: nobody has looked for a peak.
    """
    arm = str(results.reference)
    if any(run.config.arm != "vanilla-rl" for run in results.arm_runs(arm)):
        return []
    seeds = tuple(results.final_side(label, arm).policies)
    by_seed = [set(results.policies(label, arm, seed)) for seed in seeds]
    path = sorted(set.intersection(*by_seed)) if seeds else []
    if sum(policy.step > 0 for policy in path) < 2:
        return []
    tables = [results.values(label, Side(arm, dict.fromkeys(seeds, policy)), seeds) for policy in path]
    falls = {name: fall_from_peak(np.stack([table[name] for table in tables])) for name in results.ends(label)}
    return [
        Claim(
            claim, label, f"{name}, end minus peak", -1, crossed_effects(lost[None], seed=results.resampling)[0], seeds
        )
        for name, lost in falls.items()
    ]


def fall_from_peak(values: Floats) -> Floats:
    """Return the last policy minus the best one, which other seeds and the other half of the problems have chosen.

    The best of many policies is better than the last by chance alone. So the peak is chosen on the other seeds (on the
    same one where there is only one) and the other half of the problems.

    Args:
        values: Shape [policies, seeds, problems], in the order of training.

    Returns:
        Shape [seeds, problems].
    """
    policies, seeds, problems = values.shape
    half = np.arange(problems) % 2 == 0
    halves = [half, ~half] if problems > 1 else [half]
    lost = np.empty((seeds, problems))
    for seed in range(seeds):
        judges = [one for one in range(seeds) if one != seed] or [seed]
        for measured in halves:
            judged_on = ~measured if problems > 1 else measured
            best = int(values[:, judges][:, :, judged_on].mean(axis=(1, 2)).argmax())
            lost[seed, measured] = values[policies - 1, seed, measured] - values[best, seed, measured]
    return lost
