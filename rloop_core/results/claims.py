"""The paper's claims beside what was found; what disagrees comes first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rloop_core.evaluation.metrics import Floats
from rloop_core.results.forgetting import Forgetting
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
    effect: Effect
    """What was found; shares, as fractions. The paper claims that it is above zero."""
    seeds: tuple[int, ...]
    """Seeds that it rests on."""

    @property
    def outcome(self) -> str:
        """One of `OUTCOMES`: what the interval says about the claim."""
        return {1: AS_CLAIMED, -1: OPPOSITE}.get(self.effect.sign, UNRESOLVED)


def claims(results: Results, table: ResultTable, forgotten: Sequence[Forgetting]) -> list[Claim]:
    """Return what the paper claims of RLoop and vanilla RL, and there are numbers for: what disagrees first."""
    if results.reference is None:
        return []
    main, reference = (results.titles[arm] for arm in results.pair)
    found: list[Claim] = []
    for label in results.sets:
        if row := table.difference(label, results.main, results.reference):
            claim = f"{main} is better than {reference}"
            found += [Claim(claim, label, name, row.cells[name], row.seeds) for name in results.ends(label)]
        found += _falls(results, label, f"{reference} falls from its peak")
    found += [
        Claim(f"{main} forgets less than {reference}", one.set, f"beyond chance, {one.path}", one.excess_difference,
              one.paired)
        for one in forgotten
        if one.arm == results.main and one.excess_difference
    ]  # fmt: skip
    return sorted(found, key=lambda claim: OUTCOMES.index(claim.outcome))


def _falls(results: Results, label: str, claim: str) -> list[Claim]:
    """Return the peak of vanilla RL minus its end, for avg@n and pass@k.

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
    found = []
    for name in results.ends(label):
        lost = fall_from_peak(np.stack([table[name] for table in tables]))
        (effect,) = crossed_effects(lost[None], seed=results.resampling)
        found.append(Claim(claim, label, f"{name}, peak minus end", effect, seeds))
    return found


def fall_from_peak(values: Floats) -> Floats:
    """Return the best policy, which other seeds and the other half of the problems have chosen, minus the last one.

    The best of many policies is better than the last by chance alone. So the peak is chosen on the other seeds (on the
    same one where there is only one) and the other half of the problems. `values` have the shape [policies, seeds,
    problems], in the order of training; the result has the shape [seeds, problems].
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
            lost[seed, measured] = values[best, seed, measured] - values[policies - 1, seed, measured]
    return lost
