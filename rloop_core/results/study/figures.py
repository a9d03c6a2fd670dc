"""The study's learning curves: the main arm and the reference over RL steps, each seed and their mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from rloop_core.evaluation.metrics import Floats
from rloop_core.results.compare.figures import LOOKS, THETA, marker_size
from rloop_core.results.plotting import (
    MUTED,
    Picture,
    panels,
    percent_axis,
    picture,
    plain,
    styled,
)
from rloop_core.results.study.record import Policy, Side, StudyRecord
from rloop_core.results.study.table import Row
from rloop_core.results.study.training import TRAINING

_WINDOW = 5
"""RL steps over which a curve of training is smoothed."""
Steps = Mapping[str, Mapping[str, Mapping[Policy, Row]]]


@styled
def curves(record: StudyRecord, steps: Steps) -> Picture | None:
    """avg@n and pass@k of the greatest k over RL steps, a row a set: the main arm and the reference."""
    arms = _pair(record)
    labels = [label for label in record.sets if any(len(steps[label][arm]) > 1 for arm in arms)]
    if not labels:
        return None
    figure, axes = panels(len(labels), 2, height=2.6, sharex=True)
    rows: list[tuple[Any, ...]] = []
    for place, label in enumerate(labels):
        metrics = record.ends(label)
        for axis, metric in zip(axes[2 * place :], metrics, strict=False):
            for arm, look in zip(arms, LOOKS, strict=False):
                own = steps[label][arm]
                for seed in record.study.seeds:
                    _thin(axis, record, label, arm, seed, metric, look)
                _thick(axis, own, metric, look, record.titles[arm])
                rows += [
                    (label, record.titles[arm], policy.step, policy.kind, metric, one.value, one.low, one.high,
                     " ".join(map(str, row.seeds)))
                    for policy, row in own.items() for one in [row.cells[metric]]
                ]  # fmt: skip
            axis.set_title(f"{plain(label)}: {metric}")
            percent_axis(axis)
        for axis in axes[2 * place + len(metrics) : 2 * place + 2]:
            axis.set_visible(False)
    _by_rl_step(figure, axes, record)
    caption = (
        "Thick: means over the seeds; bands: 95 % intervals over problems and seeds. Thin: single seeds. Diamonds are "
        "policies that RFT made; from each, the next RL phase starts anew (dotted lines)."
    )
    columns = ("set", "arm", "rl_step", "kind", "metric", "value", "low", "high", "seeds")
    return picture(figure, "curves", "Accuracy and pass@k over RL steps", caption, columns, rows)


@styled
def training(record: StudyRecord) -> Picture | None:
    """Training reward and accuracy over RL steps: the main arm and the reference."""
    arms = _pair(record)
    runs = {arm: [one.steps for (name, _), one in record.arms.items() if name == arm and one.steps] for arm in arms}
    if not any(runs.values()):
        return None
    figure, axes = panels(1, 2, height=2.6)
    for axis, metric in zip(axes, TRAINING, strict=True):
        for arm, look in zip(arms, LOOKS, strict=False):
            _training_curves(axis, runs[arm], metric, look, record.titles[arm])
        axis.set_title({"reward": "mean reward, as trained on", "accuracy": "share of correct rollouts"}[metric])
    percent_axis(axes[1])
    _by_rl_step(figure, axes, record)
    caption = (
        f"All recorded rollouts of each RL step. Thick: means over seeds and {_WINDOW} RL steps; thin: single seeds."
    )
    columns = ("arm", "seed", "rl_step", "iteration", *TRAINING, "entropy", "grad_norm")
    rows = [
        (arm, seed, row["total_step"], row["iteration"], *(row.get(name) for name in columns[4:]))
        for (arm, seed), one in record.arms.items()
        for row in one.steps
    ]
    return picture(figure, "training", "Training reward over RL steps", caption, columns, rows)


def _pair(record: StudyRecord) -> tuple[str, str]:
    return record.study.main, record.study.reference


def _phases(policies: Sequence[Policy]) -> list[list[Policy]]:
    """Policies that came out of one another by RL alone; what RFT made begins a phase."""
    if not any(one.kind == "snapshot" for one in policies):
        return [list(policies)] if policies else []
    found: list[list[Policy]] = []
    for one in policies:
        if one.kind in ("base", "theta") or not found:
            found.append([one])
        else:
            found[-1].append(one)
    return [phase for phase in found if len(phase) > 1]


def _thin(axis: Any, record: StudyRecord, label: str, arm: str, seed: int, metric: str, look: dict[str, Any]) -> None:
    place = record.metrics[label].index(metric)
    for phase in _phases(list(record.checkpoints(label, arm, seed))):
        means = [record.values(label, Side(arm, {seed: one}), [seed])[place].mean() for one in phase]
        axis.plot([one.step for one in phase], means, color=look["color"], linewidth=0.7, alpha=0.4)


def _thick(axis: Any, own: Mapping[Policy, Row], metric: str, look: dict[str, Any], title: str) -> None:
    said: str | None = plain(title)
    for phase in _phases(list(own)):
        x, cells = [one.step for one in phase], [own[one].cells[metric] for one in phase]
        axis.plot(x, [one.value for one in cells], markersize=marker_size(len(phase)), **look, label=said)
        low, high = [one.low for one in cells], [one.high for one in cells]
        axis.fill_between(x, low, high, color=look["color"], alpha=0.13, linewidth=0)
        said = None
    thetas = [one for one in own if one.kind == "theta"]
    axis.plot([one.step for one in thetas], [own[one].cells[metric].value for one in thetas], color=look["color"],
              **THETA)  # fmt: skip


def _training_curves(
    axis: Any, runs: Sequence[list[dict[str, Any]]], metric: str, look: dict[str, Any], title: str
) -> None:
    """Each seed thin, their smoothed mean thick; a line a phase."""
    values: dict[tuple[int, int], list[float]] = {}
    for rows in runs:
        shown = [row for row in rows if row.get(metric) is not None]
        for _, group in groupby(shown, key=lambda row: row["iteration"]):
            phase = list(group)
            axis.plot([row["total_step"] for row in phase], [row[metric] for row in phase], color=look["color"],
                      linewidth=0.6, alpha=0.3)  # fmt: skip
        for row in shown:
            values.setdefault((row["iteration"], row["total_step"]), []).append(row[metric])
    said: str | None = plain(title)
    for _, keys in groupby(sorted(values), key=lambda key: key[0]):
        phase_keys = list(keys)
        means = _smoothed(np.array([float(np.mean(values[key])) for key in phase_keys]))
        dash = look["linestyle"]
        axis.plot([step for _, step in phase_keys], means, color=look["color"], linestyle=dash, label=said)
        said = None


def _smoothed(values: Floats) -> Floats:
    """Centred moving mean, over fewer values at the ends."""
    half = _WINDOW // 2
    return np.array([values[max(0, place - half) : place + half + 1].mean() for place in range(len(values))])


def _by_rl_step(figure: Any, axes: Sequence[Any], record: StudyRecord) -> None:
    """Labels, the legend, and a dotted line wherever the main arm goes on from what RFT made."""
    config = next((one.run.config for (arm, _), one in record.arms.items() if arm == record.study.main), None)
    resets = [i * config.explore.steps for i in range(1, config.iterations)] if config else []
    for axis in axes:
        for step in resets:
            axis.axvline(step, color=MUTED, linewidth=0.9, linestyle=(0, (1, 2)), zorder=0)
        axis.xaxis.get_major_locator().set_params(integer=True)
    for axis in axes[-2:]:
        axis.set_xlabel("RL step")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=2)
