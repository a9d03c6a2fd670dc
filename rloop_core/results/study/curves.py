"""Draw curves over RL steps of an RLoop arm and its reference, over one seed or several."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from rloop_core.evaluation.metrics import Floats, headline_metrics, metric_order
from rloop_core.results.plotting import (
    COLOURS,
    MARKERS,
    MUTED,
    Picture,
    add_legend,
    panels,
    percent_axis,
    picture,
    plain,
    styled,
)
from rloop_core.results.study.record import Policy, StudyRecord
from rloop_core.results.study.table import Steps
from rloop_core.results.tables import Row, ends_of

LOOKS: tuple[dict[str, Any], ...] = (
    {"color": COLOURS[0], "marker": MARKERS[0], "linestyle": "-"},
    {"color": COLOURS[1], "marker": MARKERS[1], "linestyle": (0, (5, 2))},
)
"""Colour, marker and line of the first and the second arm."""

THETA: dict[str, Any] = {
    "linestyle": "none", "marker": "D", "markersize": 6.5, "markerfacecolor": "white", "markeredgewidth": 1.6
}  # fmt: skip
"""Marker of a policy after RFT."""

_REWARD = {"reward": "mean reward, as trained on", "accuracy": "share of correct rollouts"}
_ROLLOUTS = "All recorded rollouts of each RL step."
_WINDOW = 5
"""RL steps over which the figure of several seeds is smoothed; it shows each seed too."""

STEP_FIGURES: dict[str, tuple[str, str, dict[str, str]]] = {
    "figure-1-reward": ("Figure 1, for both arms. Training reward over RL steps", _ROLLOUTS, _REWARD),
    "figure-5c-entropy": (
        "Figure 5c. Policy entropy over RL steps",
        "Over all rollouts of each RL step; entropy also over its updates, without groups all right or all wrong.",
        {
            "entropy_rollouts": "policy entropy, nats a token",
            "entropy": "policy entropy in the updates, nats a token",
            "length_mean": "completion length, tokens",
        },
    ),
    "figure-6-gradients": (
        "Figure 6. Gradient norm over RL steps",
        "Before clipping.",
        {"grad_norm": "gradient norm, mean of the updates", "grad_norm_max": "gradient norm, largest of the updates"},
    ),
    "training": (
        "Training reward over RL steps",
        f"{_ROLLOUTS} Thick: means over seeds and {_WINDOW} RL steps; thin: single seeds.",
        _REWARD,
    ),
}
"""Name of a figure: its title, its caption, and the axis title of each metric."""
_LOG_RATIO = 30  # a largest value this many times the median is only readable on a logarithmic axis


def phases(kinds: Sequence[str], restarts: bool = True) -> list[list[int]]:
    """Group policies that RL alone connects; returns the indices of each group of at least two.

    Thetas without any snapshot are one group. With `restarts` off, RL goes on from its own endpoint: all of RL is one
    group, without thetas.
    """
    if "snapshot" not in kinds:
        return [list(range(len(kinds)))] if kinds else []
    groups: list[list[int]] = []
    for index, kind in enumerate(kinds):
        if kind == "theta" and not restarts:
            continue
        if kind in ("base", "theta") or not groups:
            groups.append([index])
        else:
            groups[-1].append(index)
    return [group for group in groups if len(group) > 1]


def marker_size(points: int) -> float:
    """Return a marker size at which this many points do not run into one another."""
    return 4.5 if points < 16 else 2.5 if points < 64 else 0.0


def shown_metrics(rows: Iterable[Row]) -> list[str]:
    """Return avg@n and the pass@k of the greatest k, of the metrics that every row has; pass@1 is avg@n."""
    common = set.intersection(*(set(row.cells) for row in rows))
    return headline_metrics(sorted(common - {"pass@1"}, key=metric_order))


def metric_panels(metrics: Mapping[str, Sequence[str]], draw: Callable[[Any, str, str], None]) -> tuple[Any, list[Any]]:
    """Make a figure with a row for each set and a panel for each of its metrics, at most two.

    Args:
        metrics: Metrics by set label.
        draw: Called with axis, label and metric.
    """
    figure, axes = panels(2 * len(metrics), 2, height=2.6, sharex=True)
    for row, (label, names) in enumerate(metrics.items()):
        for axis, metric in zip(axes[2 * row :], names, strict=False):
            draw(axis, label, metric)
            axis.set_title(f"{plain(label)}: {metric}")
            percent_axis(axis)
        for axis in axes[2 * row + len(names) : 2 * row + 2]:
            axis.set_visible(False)
    return figure, axes


def finish_step_axes(figure: Any, axes: Sequence[Any], record: StudyRecord) -> None:
    """Label the axes, draw a dotted line wherever RL starts anew from a refined policy, and add the legend."""
    configs = [run.run.config for arm in record.pair for run in record.runs(arm) if run.restarts]
    resets = {i * config.explore.steps for config in configs for i in range(1, config.iterations)}
    for axis in axes:
        for step in sorted(resets):
            axis.axvline(step, color=MUTED, linewidth=0.9, linestyle=(0, (1, 2)), zorder=0)
        axis.xaxis.get_major_locator().set_params(integer=True)
    for axis in axes[-2:]:
        axis.set_xlabel("RL step")
    add_legend(figure, axes[0])


@styled
def curves(
    record: StudyRecord, steps: Steps, name: str = "curves", title: str = "Accuracy and pass@k over RL steps"
) -> Picture | None:
    """Draw avg@n and pass@k of the greatest k over RL steps, a row a set: the main arm and the reference."""
    labels = [label for label in record.sets if any(len(steps[label][arm]) > 1 for arm in record.pair)]
    if not labels:
        return None
    rows: list[tuple[Any, ...]] = []

    def draw(axis: Any, label: str, metric: str) -> None:
        for arm, look in zip(record.pair, LOOKS, strict=True):
            of_arm, restarts = steps[label][arm], any(run.restarts for run in record.runs(arm))
            for seed in record.seeds if len(record.seeds) > 1 else ():
                policies = list(record.checkpoints(label, arm, seed))
                means = [record.means(label, arm, seed, policy)[metric] for policy in policies]
                for phase in phases([policy.kind for policy in policies], restarts):
                    points = zip(*((policies[index].step, means[index]) for index in phase), strict=True)
                    axis.plot(*points, color=look["color"], linewidth=0.7, alpha=0.4)
            _draw_policies(axis, of_arm, metric, look, record.titles[arm], restarts)
            rows.extend(
                (label, record.titles[arm], policy.step, policy.kind, policy.label, metric,
                 *ends_of(row.cells[metric]), " ".join(map(str, row.seeds)))
                for policy, row in of_arm.items()
            )  # fmt: skip

    shown = {label: shown_metrics(row for arm in record.pair for row in steps[label][arm].values()) for label in labels}
    figure, axes = metric_panels(shown, draw)
    finish_step_axes(figure, axes, record)
    bands = "Bands are 95 % bootstrap intervals over problems."
    if len(record.seeds) > 1:
        bands = "Thick: means over the seeds; bands: 95 % intervals over problems and seeds. Thin: single seeds."
    caption = (
        f"{bands} Diamonds are policies that RFT made; from each, the next RL phase starts anew (dotted lines). "
        "Circles and squares are policies within RL."
    )
    columns = ("set", "arm", "rl_step", "kind", "policy", "metric", "value", "low", "high", "seeds")
    return picture(figure, name, title, caption, columns, rows)


def _draw_policies(
    axis: Any, rows: Mapping[Policy, Row], metric: str, look: Mapping[str, Any], title: str, restarts: bool
) -> None:
    """Draw one line with its band for each RL phase, and a diamond for each policy after RFT."""
    points = [(policy.step, *ends_of(row.cells[metric])) for policy, row in rows.items()]
    kinds = [policy.kind for policy in rows]
    label: str | None = plain(title)
    for indices in phases(kinds, restarts):
        steps, values, low, high = zip(*(points[index] for index in indices), strict=True)
        axis.plot(steps, values, markersize=marker_size(len(points)), **look, label=label)
        axis.fill_between(steps, low, high, color=look["color"], alpha=0.13, linewidth=0)
        label = None
    thetas = [point for point, kind in zip(points, kinds, strict=True) if kind == "theta"]
    axis.plot([step for step, *_ in thetas], [value for _, value, *_ in thetas], color=look["color"], **THETA)


@styled
def step_curves(record: StudyRecord, name: str) -> Picture | None:
    """Draw one of `STEP_FIGURES`; None where no RL step has its metrics."""
    title, caption, metrics = STEP_FIGURES[name]
    window, more = (_WINDOW, ("entropy", "grad_norm")) if name == "training" else (1, ())
    every = [row for arm in record.pair for run in record.runs(arm) for row in run.steps]
    shown = [metric for metric in metrics if any(row.get(metric) is not None for row in every)]
    if not shown:
        return None
    figure, axes = panels(len(shown), height=2.6)
    for axis, metric in zip(axes, shown, strict=True):
        for arm, look in zip(record.pair, LOOKS, strict=True):
            _draw_steps(axis, [run.steps for run in record.runs(arm)], metric, look, record.titles[arm], window)
        axis.set_title(metrics[metric])
        if metric == "accuracy":
            percent_axis(axis)
        values = sorted(row[metric] for row in every if row.get(metric) is not None)
        if metric.startswith("grad_norm") and values[0] > 0 and values[-1] > _LOG_RATIO * values[len(values) // 2]:
            axis.set_yscale("log")
    finish_step_axes(figure, axes, record)
    columns = ("arm", "seed", "rl_step", "iteration", *shown, *more)
    rows = [
        (*key, row["total_step"], row["iteration"], *map(row.get, columns[4:]))
        for key, run in record.arms.items()
        for row in run.steps
    ]
    dotted = f"Dotted: {record.titles[record.main]} starts anew from its refined policy."
    return picture(figure, name, title, f"{caption} {dotted}", columns, rows)


def _draw_steps(
    axis: Any, runs: Sequence[list[dict[str, Any]]], metric: str, look: Mapping[str, Any], title: str, window: int
) -> None:
    """Draw the smoothed mean of the seeds, a line a phase; with a window above 1 each seed too, thin."""
    values: dict[int, dict[int, list[float]]] = {}
    for rows in runs:
        shown = [row for row in rows if row.get(metric) is not None]
        for iteration, phase in groupby(shown, key=lambda row: row["iteration"]):
            points = [(row["total_step"], row[metric]) for row in phase]
            if window > 1:
                axis.plot(*zip(*points, strict=True), color=look["color"], linewidth=0.6, alpha=0.3)
            for step, value in points:
                values.setdefault(iteration, {}).setdefault(step, []).append(value)
    size = marker_size(sum(map(len, values.values()))) if window == 1 else 0.0
    label: str | None = plain(title)
    for _, by_step in sorted(values.items()):
        steps = sorted(by_step)
        means = _smoothed(np.array([float(np.mean(by_step[step])) for step in steps]), window)
        axis.plot(steps, means, **look, markersize=size, label=label)
        label = None


def _smoothed(values: Floats, window: int) -> Floats:
    """Return the centred moving mean, over fewer values at the ends."""
    half = window // 2
    return np.array([values[max(0, index - half) : index + half + 1].mean() for index in range(len(values))])
