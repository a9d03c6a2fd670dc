"""RL overfitting in the reference arm: does training reward still rise while accuracy on other problems falls?

The best of many checkpoints is better than the last one by chance alone. So the peak of a curve is chosen on the other
seeds and the other half of the problems (on the same seed where there is only one), and the fall is measured where it
was not chosen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from rloop_core.evaluation.metrics import Floats
from rloop_core.results.study.intervals import Effect, crossed_effects, seed_effect
from rloop_core.results.study.record import Policy, Side, StudyRecord
from rloop_core.results.study.table import difference_row
from rloop_core.results.tables import Row, difference_name

VISIBLE, NOT_VISIBLE, UNKNOWN = "visible", "not visible", "unknown with one seed"
TRAINING = ("reward", "accuracy")
"""Metrics of training: reward as trained on, and the share of correct rollouts."""
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


@dataclass(frozen=True)
class Fall:
    """The end of the reference arm minus its peak.

    Attributes:
        set, metric: The problem set and the metric.
        effect: The fall; negative where the end is worse.
        peaks: How often each policy was chosen as the peak, by label.
        since: How training reward and accuracy change from that peak to the end.
        verdict: `VISIBLE` where it falls and training reward rises, both by their intervals; else `NOT_VISIBLE`, or
            `UNKNOWN` where it falls and one seed is too few to say how training goes on.
        why: The numbers behind the verdict.
    """

    set: str
    metric: str
    effect: Effect
    peaks: dict[str, int]
    since: dict[str, Effect]
    verdict: str
    why: str


@dataclass(frozen=True)
class Overfitting:
    """Evidence of overfitting in the reference arm.

    Attributes:
        arm: Its short name.
        seeds: Seeds that it rests on.
        training: Reward and accuracy of training.
        falls: The fall from the peak, by set and metric; without sets on which no policy of its course was evaluated.
        earlier: The end minus every earlier policy, by set: nothing was chosen there.
    """

    arm: str
    seeds: tuple[int, ...]
    training: list[Training]
    falls: list[Fall]
    earlier: dict[str, list[Row]]

    def fall(self, label: str, metric: str) -> Fall | None:
        """Return the fall of one metric on one set."""
        return next((fall for fall in self.falls if (fall.set, fall.metric) == (label, metric)), None)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "arm": self.arm,
            "seeds": list(self.seeds),
            "training": [
                {"metric": one.metric, "window": one.window, "slope_per_100_steps": asdict(one.slope),
                 "last_two_windows": asdict(one.last)}
                for one in self.training
            ],
            "falls": [asdict(fall) for fall in self.falls],
            "end_minus_earlier": {label: [asdict(row) for row in rows] for label, rows in self.earlier.items()},
        }  # fmt: skip


def overfitting(record: StudyRecord) -> Overfitting | None:
    """Analyse the reference arm; None where no seed has come to its end."""
    arm = record.reference
    finals = {label: final for label in record.sets if (final := record.final(label, arm))}
    ends = {label: record.at(label, arm, final).policies for label, final in finals.items()}
    seeds = [seed for seed in record.seeds if all(seed in policies for policies in ends.values())]
    if not finals or not seeds:
        return None
    seen = Overfitting(arm, tuple(seeds), _training(record, arm, seeds), [], {})
    for label, final in finals.items():
        # The policies that every seed has, in the order of training.
        path = sorted(set.intersection(*(set(record.checkpoints(label, arm, seed)) for seed in seeds)))
        if sum(policy.step > 0 for policy in path) < 2:
            continue  # with its end alone, nobody has looked for a peak
        sides = {policy: Side(arm, dict.fromkeys(seeds, policy)) for policy in path}
        tables = [record.values(label, side, seeds) for side in sides.values()]
        for metric in record.metrics[label]:
            seen.falls.append(_fall(label, metric, np.stack([table[metric] for table in tables]), path, seen))
        rows = [
            difference_row(record, label, sides[final], side, difference_name("end", policy.label))
            for policy, side in sides.items() if policy != final
        ]  # fmt: skip
        seen.earlier[label] = [row for row in rows if row]
    return seen


def fall_from_peak(values: Floats) -> tuple[Floats, list[list[int]]]:
    """Return the last policy minus the best one, which other seeds and the other half of the problems have chosen.

    Args:
        values: Shape [policies, seeds, problems], in the order of training.

    Returns:
        The differences, shape [seeds, problems], and for each seed the policies chosen for each half of the problems.
    """
    policies, seeds, problems = values.shape
    half = np.arange(problems) % 2 == 0
    halves = [half, ~half] if problems > 1 else [half]
    lost = np.empty((seeds, problems))
    chosen: list[list[int]] = []
    for seed in range(seeds):
        judges = [one for one in range(seeds) if one != seed] or [seed]
        chosen.append([])
        for measured in halves:
            judged_on = ~measured if problems > 1 else measured
            best = int(values[:, judges][:, :, judged_on].mean(axis=(1, 2)).argmax())
            lost[seed, measured] = values[policies - 1, seed, measured] - values[best, seed, measured]
            chosen[-1].append(best)
    return lost, chosen


def _fall(label: str, metric: str, values: Floats, path: Sequence[Policy], seen: Overfitting) -> Fall:
    lost, chosen = fall_from_peak(values)
    effect = crossed_effects(lost[None])[0]
    steps = {seed: [path[index].step for index in indices] for seed, indices in zip(seen.seeds, chosen, strict=True)}
    since = {one.metric: _change(one.curves, steps, one.window) for one in seen.training}
    peaks = Counter(path[index].label for indices in chosen for index in indices)
    return Fall(label, metric, effect, dict(peaks), since, *_verdict(metric, effect, since, seen.training))


def _verdict(metric: str, effect: Effect, since: dict[str, Effect], trained: Sequence[Training]) -> tuple[str, str]:
    reasons = [f"the end minus the peak of {metric} is {_number(effect, 100.0, '+.1f')} points: {_direction(effect)}"]
    if not trained:
        return NOT_VISIBLE, f"{reasons[0]}; what training did meanwhile is not known"
    first, meanwhile = trained[0], since[trained[0].metric]
    rises = first.slope.sign > 0 or meanwhile.sign > 0
    reasons += [
        f"training {first.metric} changes by {_number(meanwhile)} from that peak on: {_direction(meanwhile)}",
        f"and in the last third by {_number(first.slope)} per 100 RL steps: {_direction(first.slope, 'still ')}",
    ]
    unknown = effect.sign < 0 and first.slope.low is None
    verdict = VISIBLE if effect.sign < 0 and rises else UNKNOWN if unknown else NOT_VISIBLE
    return verdict, "; ".join(reasons)


def _direction(effect: Effect, still: str = "") -> str:
    if effect.low is None:
        return UNKNOWN
    return {1: f"it {still}rises", -1: "it falls", 0: "not resolved"}[effect.sign]


def _number(effect: Effect, scale: float = 1.0, form: str = "+.3f") -> str:
    text = f"{effect.value * scale:{form}}"
    if effect.low is not None and effect.high is not None:
        text += f" [{effect.low * scale:{form}}, {effect.high * scale:{form}}]"
    return text.replace("-", "\N{MINUS SIGN}")


def _training(record: StudyRecord, arm: str, seeds: Sequence[int]) -> list[Training]:
    """Return an arm's training over some seeds; metrics that not every RL step has are left out."""
    runs = {seed: record.arms[arm, seed] for seed in seeds}
    total = runs[seeds[0]].total_steps
    window = runs[seeds[0]].run.config.explore.snapshot_every or max(1, total // 10)
    metrics = []
    for metric in TRAINING:
        curves: dict[int, Curve] = {
            seed: {int(row["total_step"]): float(row[metric]) for row in run.steps if row.get(metric) is not None}
            for seed, run in runs.items()
        }
        if total < 2 or any(len(curve) != total for curve in curves.values()):
            continue
        slope = seed_effect([slope_of_last_third(curve) for curve in curves.values()])
        before = {seed: [max(window, total - window)] for seed in seeds}
        metrics.append(Training(metric, window, slope, _change(curves, before, window), curves))
    return metrics


def _change(curves: Mapping[int, Curve], steps: Mapping[int, Sequence[int]], window: int) -> Effect:
    """Return the mean over the last window minus that over the windows that end at some RL steps of each seed.

    `steps` has at least one RL step for each seed; 0 stands for the first window.
    """
    changes = []
    for seed, ends in steps.items():
        before = np.mean([window_mean(curves[seed], end, window) for end in ends])
        changes.append(window_mean(curves[seed], max(curves[seed]), window) - float(before))
    return seed_effect(changes)


def window_mean(curve: Curve, end: int, window: int) -> float:
    """Return the mean over the `window` RL steps up to `end`; over the first ones where there are fewer before it."""
    last = max(end, min(window, max(curve)))
    return float(np.mean([curve[step] for step in range(max(1, last - window + 1), last + 1)]))


def slope_of_last_third(curve: Curve) -> float:
    """Return the least-squares slope, per 100 RL steps."""
    total = max(curve)
    steps = np.arange(min(total - 1, 2 * total // 3 + 1), total + 1)
    return 100 * float(np.polyfit(steps, [curve[int(step)] for step in steps], 1)[0])
