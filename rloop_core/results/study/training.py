"""How the reference's training goes on: windows and slopes of the RL steps' own metrics, an interval over the seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rloop_core.results.study.effects import Effect, seed_effect
from rloop_core.results.study.record import StudyRecord

TRAINING = ("reward", "accuracy")
"""As trained on, and the share of correct rollouts."""

Curve = Mapping[int, float]
"""By RL step, from 1 on."""


@dataclass(frozen=True)
class Training:
    """One metric of the RL steps.

    Attributes:
        metric: One of `TRAINING`.
        window: RL steps of a window: from one snapshot to the next.
        slope: Least-squares slope over the last third of the RL steps, per 100 of them.
        last: Mean over the last window minus that over the window before.
        curves: The metric itself, by seed.
    """

    metric: str
    window: int
    slope: Effect
    last: Effect
    curves: dict[int, Curve]

    def since(self, steps: Mapping[int, Sequence[int]]) -> Effect:
        """Mean over the last window minus that over the windows that end at some RL steps of each seed.

        Args:
            steps: Each seed's RL steps, at least one; 0 stands for the first window.
        """
        return _change(self.curves, steps, self.window)


def training(record: StudyRecord, arm: str, seeds: Sequence[int]) -> list[Training]:
    """An arm's training over some seeds; metrics that not every RL step has are left out."""
    runs = {seed: record.arms[arm, seed] for seed in seeds}
    total = runs[seeds[0]].total_steps
    window = runs[seeds[0]].run.config.explore.snapshot_every or max(1, total // 10)
    found = []
    for metric in TRAINING:
        curves = {
            seed: {int(row["total_step"]): float(row[metric]) for row in run.steps if row.get(metric) is not None}
            for seed, run in runs.items()
        }
        if total < 2 or any(len(curve) != total for curve in curves.values()):
            continue
        slope = seed_effect([slope_of_last_third(curve) for curve in curves.values()])
        before = {seed: [max(window, total - window)] for seed in seeds}
        found.append(Training(metric, window, slope, _change(curves, before, window), dict(curves)))
    return found


def _change(curves: Mapping[int, Curve], steps: Mapping[int, Sequence[int]], window: int) -> Effect:
    changes = []
    for seed, own in steps.items():
        curve = curves[seed]
        before = np.mean([window_mean(curve, step, window) for step in own])
        changes.append(window_mean(curve, max(curve), window) - float(before))
    return seed_effect(changes)


def window_mean(curve: Curve, end: int, window: int) -> float:
    """Mean over the `window` RL steps up to `end`; over the first ones where there are fewer before it."""
    last = max(end, min(window, max(curve)))
    return float(np.mean([curve[step] for step in range(max(1, last - window + 1), last + 1)]))


def slope_of_last_third(curve: Curve) -> float:
    """Least squares, per 100 RL steps."""
    total = max(curve)
    steps = np.arange(min(total - 1, 2 * total // 3 + 1), total + 1)
    return 100 * float(np.polyfit(steps, [curve[int(step)] for step in steps], 1)[0])
