"""RL overfitting in the reference arm: does training reward still rise while accuracy on other problems falls?

The best of many checkpoints is better than the last one by chance alone. So the peak of a curve is chosen on the other
seeds and the other half of the problems (on the same seed where there is only one), and the fall is measured where it
was not chosen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rloop_core.evaluation.metrics import Floats
from rloop_core.study.effects import Effect, crossed_effects, seed_effect
from rloop_core.study.record import Policy, Side, StudyRecord
from rloop_core.study.table import Row, difference_row

TRAINING = ("reward", "accuracy")
VISIBLE, NOT_VISIBLE = "visible", "not visible"


@dataclass(frozen=True)
class Training:
    """How a training metric of the RL steps goes on.

    Attributes:
        metric: `reward` (as trained on) or `accuracy` (share of correct rollouts).
        slope: Least-squares slope over the last third of the RL steps, per 100 of them.
        last: Mean over the last window minus that over the window before; a window lies between two snapshots.
        since_peak: Mean over the last window minus that over the window that ends at the peak on a set, by set.
        window: RL steps of a window.
    """

    metric: str
    slope: Effect
    last: Effect
    since_peak: dict[str, Effect]
    window: int


@dataclass(frozen=True)
class Fall:
    """The end minus the peak of a metric on a set; `peaks` counts how often which policy was chosen."""

    set: str
    metric: str
    effect: Effect
    peaks: dict[str, int]


@dataclass(frozen=True)
class Overfitting:
    """What the reference arm shows.

    Attributes:
        arm: Its short name.
        seeds: Seeds that it rests on.
        training: Reward and accuracy of training.
        falls: The fall from the peak, by set and metric.
        earlier: The end minus every earlier policy, by set: nothing was chosen there.
        verdicts: By set "visible" or "not visible", and why.
    """

    arm: str
    seeds: tuple[int, ...]
    training: list[Training]
    falls: list[Fall]
    earlier: dict[str, list[Row]]
    verdicts: dict[str, tuple[str, str]]

    def fall(self, label: str, metric: str) -> Fall | None:
        """One set's and metric's fall."""
        return next((one for one in self.falls if (one.set, one.metric) == (label, metric)), None)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "arm": self.arm,
            "seeds": list(self.seeds),
            "training": [
                {"metric": one.metric, "window": one.window, "slope_per_100_steps": one.slope.to_dict(),
                 "last_two_windows": one.last.to_dict(),
                 "since_peak": {label: effect.to_dict() for label, effect in one.since_peak.items()}}
                for one in self.training
            ],
            "falls": [{**one.__dict__, "effect": one.effect.to_dict()} for one in self.falls],
            "end_minus_earlier": {label: [row.to_dict() for row in rows] for label, rows in self.earlier.items()},
            "verdicts": {label: {"verdict": said, "why": why} for label, (said, why) in self.verdicts.items()},
        }  # fmt: skip


def overfitting(record: StudyRecord) -> Overfitting | None:
    """Look at the reference arm; None where no seed has come to its end."""
    arm = record.study.reference
    done = {label: final for label in record.sets if (final := record.final(label, arm))}
    seeds = [
        seed for seed in record.study.seeds if all(record.at(one, arm, done[one]).policies.get(seed) for one in done)
    ]
    if not done or not seeds:
        return None
    falls: list[Fall] = []
    peaks: dict[str, dict[int, list[int]]] = {}
    earlier: dict[str, list[Row]] = {}
    for label, final in done.items():
        path = _path(record, label, arm, seeds)
        if len(path) < 2:
            continue
        table = np.stack([record.values(label, Side(arm, dict.fromkeys(seeds, one)), seeds) for one in path], axis=1)
        for place, metric in enumerate(record.metrics[label]):
            lost, chosen = fall_from_peak(table[place])
            counted = Counter(path[one].label for own in chosen for one in own)
            falls.append(Fall(label, metric, crossed_effects(lost[None])[0], dict(counted)))
            if metric == record.ends(label)[-1]:
                peaks[label] = {seed: [path[one].step for one in own] for seed, own in zip(seeds, chosen, strict=True)}
        end = Side(arm, dict.fromkeys(seeds, final))
        rows = [
            difference_row(record, label, end, Side(arm, dict.fromkeys(seeds, one)), f"end \N{MINUS SIGN} {one.label}")
            for one in path if one != final
        ]  # fmt: skip
        earlier[label] = [row for row in rows if row]
    training = _training(record, arm, seeds, peaks)
    found = Overfitting(arm, tuple(seeds), training, falls, earlier, {})
    found.verdicts.update({label: _verdict(record, found, label) for label in earlier})
    return found


def fall_from_peak(values: Floats) -> tuple[Floats, list[list[int]]]:
    """The last policy minus the best one, which other seeds and the other half of the problems have chosen.

    Args:
        values: Shape [policies, seeds, problems], in the order of training.

    Returns:
        The differences, shape [seeds, problems], and for each seed the policies that the halves of the problems saw.
    """
    policies, seeds, problems = values.shape
    half = np.arange(problems) % 2 == 0
    halves = [half, ~half] if problems > 1 else [half]
    lost = np.empty((seeds, problems))
    chosen: list[list[int]] = []
    for seed in range(seeds):
        judges = [one for one in range(seeds) if one != seed] or [seed]
        chosen.append([])
        for own in halves:
            other = ~own if problems > 1 else own
            best = int(values[:, judges][:, :, other].mean(axis=(1, 2)).argmax())
            lost[seed, own] = values[policies - 1, seed, own] - values[best, seed, own]
            chosen[-1].append(best)
    return lost, chosen


def _path(record: StudyRecord, label: str, arm: str, seeds: Sequence[int]) -> list[Policy]:
    """The policies that every seed has, in the order of training."""
    common = set.intersection(*(set(record.checkpoints(label, arm, seed)) for seed in seeds))
    return sorted(common)


def _training(
    record: StudyRecord, arm: str, seeds: Sequence[int], peaks: dict[str, dict[int, list[int]]]
) -> list[Training]:
    steps = {seed: record.arms[arm, seed].steps for seed in seeds}
    total = record.arms[arm, seeds[0]].total_steps
    window = record.arms[arm, seeds[0]].run.config.explore.snapshot_every or max(1, total // 10)
    found = []
    for metric in TRAINING:
        curves = {
            seed: {int(row["total_step"]): float(row[metric]) for row in rows if row.get(metric) is not None}
            for seed, rows in steps.items()
        }
        if not all(len(one) == total for one in curves.values()) or total < 2:
            continue
        ends = {seed: _mean(curve, total, window) for seed, curve in curves.items()}
        found.append(
            Training(
                metric,
                seed_effect([_slope(curve, total) for curve in curves.values()]),
                seed_effect([ends[seed] - _mean(curves[seed], max(window, total - window), window) for seed in seeds]),
                {
                    label: seed_effect(
                        [ends[seed] - float(np.mean([_mean(curves[seed], step, window) for step in chosen[seed]]))
                         for seed in seeds]
                    )
                    for label, chosen in peaks.items()
                },
                window,
            )
        )  # fmt: skip
    return found


def _mean(curve: dict[int, float], end: int, window: int) -> float:
    """Over the window that ends at an RL step; the base's is the first one."""
    last = max(end, min(window, max(curve)))
    return float(np.mean([curve[step] for step in range(max(1, last - window + 1), last + 1)]))


def _slope(curve: dict[int, float], total: int) -> float:
    first = min(total - 1, 2 * total // 3 + 1)
    steps = np.arange(first, total + 1)
    return 100 * float(np.polyfit(steps, [curve[int(step)] for step in steps], 1)[0])


def _verdict(record: StudyRecord, found: Overfitting, label: str) -> tuple[str, str]:
    """Visible where the pass@k of the greatest k falls and training reward rises, both by their intervals."""
    metric = record.ends(label)[-1]
    fall = found.fall(label, metric)
    if fall is None or not found.training:
        return NOT_VISIBLE, "it takes snapshots and the metrics of the RL steps to see it"
    training = found.training[0]
    since = training.since_peak[label]
    falls, rises = fall.effect.sign < 0, training.slope.sign > 0 or since.sign > 0
    parts = [
        f"the end minus the peak of {metric} is {_points(fall.effect)} points: {_said(fall.effect)}",
        f"training {training.metric} changes by {_number(since)} from that peak on: {_said(since)}",
        f"and in the last third by {_number(training.slope)} per 100 RL steps: {_said(training.slope, 'still')}",
    ]
    return VISIBLE if falls and rises else NOT_VISIBLE, "; ".join(parts)


def _said(effect: Effect, still: str = "") -> str:
    if effect.low is None:
        return "unknown with one seed"
    return {1: f"it {still} rises".replace("  ", " "), -1: "it falls", 0: "not resolved"}[effect.sign]


def _points(effect: Effect) -> str:
    return _number(effect, 100.0, "+.1f")


def _number(effect: Effect, scale: float = 1.0, form: str = "+.3f") -> str:
    ends = (
        ""
        if effect.low is None or effect.high is None
        else (f" [{effect.low * scale:{form}}, {effect.high * scale:{form}}]")
    )
    return f"{effect.value * scale:{form}}{ends}".replace("-", "\N{MINUS SIGN}")
