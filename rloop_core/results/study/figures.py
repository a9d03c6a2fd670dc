"""The study's figures: learning curves of the main arm and the reference, differences, and forgetting beside chance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from rloop_core.evaluation.metrics import Floats
from rloop_core.results.compare.curves import (
    LOOKS,
    STEP_FIGURES,
    Point,
    draw_policies,
    finish_step_axes,
    metric_panels,
    phases,
)
from rloop_core.results.plotting import (
    COLOURS,
    GRID,
    INK,
    MARKERS,
    MUTED,
    Picture,
    panels,
    percent_axis,
    picture,
    plain,
    styled,
)
from rloop_core.results.study.findings import StudyFindings
from rloop_core.results.study.forgetting import PATHS, Forgetting
from rloop_core.results.study.intervals import Effect
from rloop_core.results.study.overfitting import TRAINING
from rloop_core.results.study.record import Policy, StudyRecord
from rloop_core.results.study.table import Row

_WINDOW = 5
"""RL steps over which a curve of training is smoothed."""
_LINE = 0.2
"""Height of a line of a forest plot, inches."""
Steps = Mapping[str, Mapping[str, Mapping[Policy, Row]]]


def draw(findings: StudyFindings) -> dict[str, Picture]:
    """Draw every figure that there are numbers for; returns them by name."""
    record, table = findings.record, findings.table
    main, reference = record.titles[record.study.main], record.titles[record.study.reference]
    pictures = (
        curves(record, findings.steps),
        training(record),
        differences(record, table.differences, "differences", f"Against {reference}"),
        differences(record, table.ablations, "ablations", f"Ablations against {main}"),
        forgotten(record, findings.forgetting),
    )
    return {one.name: one for one in pictures if one}


@styled
def curves(record: StudyRecord, steps: Steps) -> Picture | None:
    """Draw avg@n and pass@k of the greatest k over RL steps, a row a set: the main arm and the reference."""
    arms = (record.study.main, record.study.reference)
    labels = [label for label in record.sets if any(len(steps[label][arm]) > 1 for arm in arms)]
    if not labels:
        return None
    rows: list[tuple[Any, ...]] = []

    def draw_metric(axis: Any, label: str, metric: str) -> None:
        place = record.metrics[label].index(metric)
        for arm, look in zip(arms, LOOKS, strict=False):
            for seed in record.study.seeds:
                policies = list(record.checkpoints(label, arm, seed))
                for phase in phases([policy.kind for policy in policies]):
                    means = [record.values_of(label, arm, seed, policies[one])[place] for one in phase]
                    axis.plot(
                        [policies[one].step for one in phase], means, color=look["color"], linewidth=0.7, alpha=0.4
                    )
            points = [(Point(policy.step, policy.kind, *_ends(row.cells[metric])), row.seeds)
                      for policy, row in steps[label][arm].items()]  # fmt: skip
            draw_policies(axis, [point for point, _ in points], look, record.titles[arm])
            rows.extend(
                (label, record.titles[arm], point.step, point.kind, metric, *point[2:], " ".join(map(str, seeds)))
                for point, seeds in points
            )

    figure, axes = metric_panels({label: record.ends(label) for label in labels}, draw_metric)
    _finish(figure, axes, record)
    caption = (
        "Thick: means over the seeds; bands: 95 % intervals over problems and seeds. Thin: single seeds. Diamonds are "
        "policies that RFT made; from each, the next RL phase starts anew (dotted lines)."
    )
    columns = ("set", "arm", "rl_step", "kind", "metric", "value", "low", "high", "seeds")
    return picture(figure, "curves", "Accuracy and pass@k over RL steps", caption, columns, rows)


@styled
def training(record: StudyRecord) -> Picture | None:
    """Draw training reward and accuracy over RL steps: the main arm and the reference."""
    arms = (record.study.main, record.study.reference)
    runs = {arm: [run.steps for (name, _), run in record.arms.items() if name == arm and run.steps] for arm in arms}
    if not any(runs.values()):
        return None
    figure, axes = panels(1, 2, height=2.6)
    for axis, metric in zip(axes, TRAINING, strict=True):
        for arm, look in zip(arms, LOOKS, strict=False):
            _training_curves(axis, runs[arm], metric, look, record.titles[arm])
        axis.set_title(STEP_FIGURES["figure-1-reward"][2][metric])
    percent_axis(axes[1])
    _finish(figure, axes, record)
    caption = (
        f"All recorded rollouts of each RL step. Thick: means over seeds and {_WINDOW} RL steps; thin: single seeds."
    )
    columns = ("arm", "seed", "rl_step", "iteration", *TRAINING, "entropy", "grad_norm")
    rows = [
        (*key, row["total_step"], row["iteration"], *map(row.get, columns[4:]))
        for key, run in record.arms.items()
        for row in run.steps
    ]
    return picture(figure, "training", "Training reward over RL steps", caption, columns, rows)


def _training_curves(
    axis: Any, runs: Sequence[list[dict[str, Any]]], metric: str, look: dict[str, Any], title: str
) -> None:
    """Draw each seed thin and their smoothed mean thick, a line a phase."""
    values: dict[int, dict[int, list[float]]] = {}
    for rows in runs:
        shown = [row for row in rows if row.get(metric) is not None]
        for iteration, phase in groupby(shown, key=lambda row: row["iteration"]):
            points = [(row["total_step"], row[metric]) for row in phase]
            axis.plot(*zip(*points, strict=True), color=look["color"], linewidth=0.6, alpha=0.3)
            for step, value in points:
                values.setdefault(iteration, {}).setdefault(step, []).append(value)
    label: str | None = plain(title)
    for _, by_step in sorted(values.items()):
        steps = sorted(by_step)
        means = _smoothed(np.array([float(np.mean(by_step[step])) for step in steps]))
        axis.plot(steps, means, color=look["color"], linestyle=look["linestyle"], label=label)
        label = None


def _smoothed(values: Floats) -> Floats:
    """Return the centred moving mean, over fewer values at the ends."""
    half = _WINDOW // 2
    return np.array([values[max(0, place - half) : place + half + 1].mean() for place in range(len(values))])


def _finish(figure: Any, axes: Sequence[Any], record: StudyRecord) -> None:
    main = [run for (arm, _), run in record.arms.items() if arm == record.study.main]
    finish_step_axes(figure, axes, main[:1])


@styled
def differences(record: StudyRecord, rows: Mapping[str, Sequence[Row]], name: str, title: str) -> Picture | None:
    """Draw differences with their intervals, a panel a set, a group of lines an arm."""
    labels = [label for label in record.sets if rows.get(label)]
    if not labels:
        return None
    most = max(sum(len(row.cells) + 1 for row in rows[label]) for label in labels)
    figure, axes = panels(1, len(labels), width=4.2 * max(2, len(labels)), height=0.6 + _LINE * most, sharex=True)
    cells: list[tuple[Any, ...]] = []
    for axis, label in zip(axes, labels, strict=True):
        y, left = 0.0, axis.get_yaxis_transform()
        for row in rows[label]:
            axis.text(0, y, plain(row.name), transform=left, fontsize=8.5, fontweight="bold", va="center",
                      bbox={"facecolor": "white", "edgecolor": "none", "pad": 1})  # fmt: skip
            for place, (metric, effect) in enumerate(row.cells.items()):
                y += 1
                _interval(axis, y, effect, COLOURS[place % len(COLOURS)], MARKERS[place % len(MARKERS)])
                axis.text(-0.01, y, metric, transform=left, fontsize=8, va="center", ha="right", color=INK)
                cells.append((label, row.name, metric, *_ends(effect), *effect.by_seed))
            y += 1.4
        axis.axvline(0, color=INK, linewidth=0.9)
        axis.spines["left"].set_visible(False)
        axis.set_ylim(y - 0.6, -0.8)
        axis.set_yticks([])
        axis.set_title(plain(label))
        axis.set_xlabel("percentage points")
        axis.xaxis.set_major_formatter(lambda x, _: _points(x))
        axis.grid(visible=False, axis="y")
        axis.grid(color=GRID, axis="x")
    caption = (
        "Differences of the last policies, paired over problems and seeds, with 95 % intervals over both. Small "
        "circles: single seeds. Right of zero: the first named is better."
    )
    seeds = max(map(len, cells)) - 6
    columns = ("set", "difference", "metric", "value", "low", "high", *(f"seed_{i + 1}" for i in range(seeds)))
    padded = [(*cell, *[None] * (len(columns) - len(cell))) for cell in cells]
    return picture(figure, name, title, caption, columns, padded)


@styled
def forgotten(record: StudyRecord, rows: Sequence[Forgetting]) -> Picture | None:
    """Draw mean forgetting of every arm and what chance alone would give, a panel a set and path."""
    if not rows:
        return None
    keys = list(dict.fromkeys((row.path, row.set) for row in rows))
    wide = min(2, len(keys))
    figure, axes = panels(-(-len(keys) // wide), wide, height=0.7 + 0.34 * len(record.study.arms))
    colours = {record.study.main: COLOURS[0], record.study.reference: COLOURS[1]}
    cells: list[tuple[Any, ...]] = []
    for axis, (path, label) in zip(axes, keys, strict=False):
        of_panel = [row for row in rows if (row.path, row.set) == (path, label)]
        for y, row in enumerate(of_panel):
            _interval(axis, y, row.observed, colours.get(row.arm, COLOURS[2]), "o")
            axis.plot([row.null.value], [y], linestyle="none", marker="D", markersize=6, markerfacecolor="white",
                      markeredgecolor=INK, label="by chance" if y == 0 else None)  # fmt: skip
            ends = (end for effect in (row.observed, row.null, row.excess) for end in _ends(effect))
            cells.append((label, path, record.titles[row.arm], *ends))
        names = [plain(record.titles[row.arm]) for row in of_panel]
        axis.set_yticks(range(len(names)), names, fontsize=8.5, color=INK)
        axis.set_ylim(len(names) - 0.4, -0.6)
        axis.set_title(f"{plain(label)}: {path}")
        axis.set_xlabel("problems forgotten")
        percent_axis(axis, "x")
    for axis in axes[len(keys) :]:
        axis.set_visible(False)
    handles, names = axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper right")
    caption = (
        "Share of problems that an earlier policy solves and a later one does not, with 95 % intervals over problems "
        "and seeds; small circles: single seeds. Diamonds: what it would be if both policies were one. "
        + " ".join(f"{name[0].upper()}{name[1:]}: {about}." for name, about in PATHS.items())
    )
    columns = ("set", "path", "arm", *(f"{name}{end}" for name in ("observed", "null", "excess")
                                       for end in ("", "_low", "_high")))  # fmt: skip
    return picture(figure, "forgetting", "Forgetting beside chance", caption, columns, cells)


def _ends(effect: Effect) -> tuple[float, float | None, float | None]:
    return effect.value, effect.low, effect.high


def _interval(axis: Any, y: float, effect: Effect, colour: str, marker: str) -> None:
    """Draw an interval with its mean, and each seed's own value."""
    if effect.low is not None:
        axis.plot([effect.low, effect.high], [y, y], color=colour, linewidth=2, solid_capstyle="butt")
    axis.plot([effect.value], [y], marker=marker, color=colour, markersize=6, linestyle="none")
    if len(effect.by_seed) > 1:
        axis.plot(effect.by_seed, [y] * len(effect.by_seed), linestyle="none", marker="o", markersize=3.2,
                  markerfacecolor="none", markeredgecolor=MUTED, markeredgewidth=0.8)  # fmt: skip


def _points(value: float) -> str:
    rounded = round(100 * value)
    return f"{rounded:+d}".replace("-", "\N{MINUS SIGN}") if rounded else "0"
