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
from rloop_core.results.study.effects import Effect, crossed_effects
from rloop_core.results.study.record import Policy, Side, StudyRecord
from rloop_core.results.study.table import Row, difference_row
from rloop_core.results.study.training import Training, training

VISIBLE, NOT_VISIBLE, UNKNOWN = "visible", "not visible", "unknown with one seed"


@dataclass(frozen=True)
class Fall:
    """The end of the reference arm minus its peak.

    Attributes:
        set, metric: Where.
        effect: The fall; negative where the end is worse.
        peaks: How often which policy was chosen as the peak.
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

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        since = {name: one.to_dict() for name, one in self.since.items()}
        return {**self.__dict__, "effect": self.effect.to_dict(), "since": since}


@dataclass(frozen=True)
class Overfitting:
    """What the reference arm shows.

    Attributes:
        arm: Its short name.
        seeds: Seeds that it rests on.
        training: Reward and accuracy of training.
        falls: The fall from the peak, by set and metric.
        earlier: The end minus every earlier policy, by set: nothing was chosen there.
    """

    arm: str
    seeds: tuple[int, ...]
    training: list[Training]
    falls: list[Fall]
    earlier: dict[str, list[Row]]

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
                 "last_two_windows": one.last.to_dict()}
                for one in self.training
            ],
            "falls": [one.to_dict() for one in self.falls],
            "end_minus_earlier": {label: [row.to_dict() for row in rows] for label, rows in self.earlier.items()},
        }  # fmt: skip


def overfitting(record: StudyRecord) -> Overfitting | None:
    """Look at the reference arm; None where no seed has come to its end."""
    arm = record.study.reference
    done = {label: final for label in record.sets if (final := record.final(label, arm))}
    seeds = [
        seed for seed in record.study.seeds if all(seed in record.at(one, arm, done[one]).policies for one in done)
    ]
    if not done or not seeds:
        return None
    found = Overfitting(arm, tuple(seeds), training(record, arm, seeds), [], {})
    for label, final in done.items():
        path = _path(record, label, arm, seeds)
        if len(path) < 2:
            continue
        sides = {one: Side(arm, dict.fromkeys(seeds, one)) for one in path}
        table = np.stack([record.values(label, side, seeds) for side in sides.values()], axis=1)
        found.falls.extend(
            _fall(label, metric, own, path, found) for metric, own in zip(record.metrics[label], table, strict=True)
        )
        rows = [
            difference_row(record, label, sides[final], side, f"end \N{MINUS SIGN} {one.label}")
            for one, side in sides.items() if one != final
        ]  # fmt: skip
        found.earlier[label] = [row for row in rows if row]
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


def _fall(label: str, metric: str, values: Floats, path: Sequence[Policy], found: Overfitting) -> Fall:
    lost, chosen = fall_from_peak(values)
    effect = crossed_effects(lost[None])[0]
    steps = {seed: [path[one].step for one in own] for seed, own in zip(found.seeds, chosen, strict=True)}
    since = {one.metric: one.since(steps) for one in found.training}
    peaks = Counter(path[one].label for own in chosen for one in own)
    return Fall(label, metric, effect, dict(peaks), since, *_verdict(metric, effect, since, found.training))


def _verdict(metric: str, effect: Effect, since: dict[str, Effect], trained: Sequence[Training]) -> tuple[str, str]:
    parts = [f"the end minus the peak of {metric} is {_number(effect, 100.0, '+.1f')} points: {_said(effect)}"]
    if not trained:
        return NOT_VISIBLE, f"{parts[0]}; what training did meanwhile is not known"
    first, meanwhile = trained[0], since[trained[0].metric]
    rises = first.slope.sign > 0 or meanwhile.sign > 0
    parts += [
        f"training {first.metric} changes by {_number(meanwhile)} from that peak on: {_said(meanwhile)}",
        f"and in the last third by {_number(first.slope)} per 100 RL steps: {_said(first.slope, 'still ')}",
    ]
    unknown = effect.sign < 0 and first.slope.low is None
    verdict = VISIBLE if effect.sign < 0 and rises else UNKNOWN if unknown else NOT_VISIBLE
    return verdict, "; ".join(parts)


def _said(effect: Effect, still: str = "") -> str:
    if effect.low is None:
        return UNKNOWN
    return {1: f"it {still}rises", -1: "it falls", 0: "not resolved"}[effect.sign]


def _number(effect: Effect, scale: float = 1.0, form: str = "+.3f") -> str:
    text = f"{effect.value * scale:{form}}"
    if effect.low is not None and effect.high is not None:
        text += f" [{effect.low * scale:{form}}, {effect.high * scale:{form}}]"
    return text.replace("-", "\N{MINUS SIGN}")
