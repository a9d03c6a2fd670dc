"""Figures over RL steps: reward, entropy and gradients (1, 5c, 6), accuracy and pass@k (1, 3, 4)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from rloop_core.evaluation.metrics import Floats
from rloop_core.results.frame import Policy, Results
from rloop_core.results.plotting import (
    COLOURS,
    INK,
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
from rloop_core.results.table import Steps
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
_ENTROPY = {"entropy": "policy entropy, nats a token"}
_LENGTH = {"length_mean": "completion length, tokens", "truncated": "share of truncated rollouts"}
_ROLLOUTS = "All recorded rollouts of each RL step."
_WINDOW = 5
"""RL steps over which curves of several seeds are smoothed."""

STEP_FIGURES: dict[str, tuple[str, str, dict[str, str]]] = {
    "figure-1-reward": ("Training reward over RL steps (figure 1)", _ROLLOUTS, _REWARD),
    "figure-5c-entropy": (
        "Policy entropy over RL steps (figure 5c)",
        "Over all rollouts of each RL step; entropy also over its updates, without groups all right or all wrong.",
        {
            "entropy_rollouts": "policy entropy, nats a token",
            "entropy": "policy entropy in the updates, nats a token",
            "length_mean": "completion length, tokens",
        },
    ),
    "figure-6-gradients": (
        "Gradient norm over RL steps (figure 6)",
        "Before clipping.",
        {"grad_norm": "gradient norm, mean of the updates", "grad_norm_max": "gradient norm, largest of the updates"},
    ),
    "health": (
        "Entropy, gradient norm, length and truncation by RL step",
        "Falling entropy and growing gradients or truncation announce overfitting and instability.",
        {
            **_ENTROPY,
            "grad_norm": "gradient norm, before clipping",
            **_LENGTH,
            "drift": "vLLM's distance from the trainer, nats a token",
        },
    ),
    "phase": (
        "The RL phase, by RL step",
        f"{_ROLLOUTS} Groups that are all correct or all wrong teach nothing.",
        {**_REWARD, "settled": "share of groups all correct or all wrong", **_ENTROPY, **_LENGTH},
    ),
}
"""Name of a figure: its title, its caption, and the axis title of each metric."""
_SHARES = ("accuracy", "truncated", "settled")
_LOG_RATIO = 30  # a largest value this many times the median is only readable on a logarithmic axis
_SHIFT = 0.05  # keeps the arms' error bars apart, in iterations


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


def _finish_step_axes(figure: Any, axes: Sequence[Any], results: Results) -> None:
    """Label the axes, draw a dotted line wherever RL starts anew from a refined policy, and add the legend."""
    configs = [run.config for arm in results.pair for run in results.arm_runs(arm) if results.restarts(arm)]
    resets = {i * config.explore.steps for config in configs for i in range(1, config.iterations)}
    for axis in axes:
        for step in sorted(resets):
            axis.axvline(step, color=MUTED, linewidth=0.9, linestyle=(0, (1, 2)), zorder=0)
        axis.xaxis.get_major_locator().set_params(integer=True)
    for axis in axes[-2:]:
        axis.set_xlabel("RL step")
    add_legend(figure, axes[0])


@styled
def curves(results: Results, steps: Steps) -> Picture | None:
    """Draw avg@n and pass@k of the greatest k over RL steps, a row a set: the main arm and the reference (figure 4)."""
    labels = [label for label in results.sets if any(len(steps[label][arm]) > 1 for arm in results.pair)]
    if not labels:
        return None
    rows: list[tuple[Any, ...]] = []

    def draw(axis: Any, label: str, metric: str) -> None:
        for arm, look in zip(results.pair, LOOKS, strict=False):
            of_arm, restarts = steps[label][arm], results.restarts(arm)
            for seed in results.seeds if len(results.seeds) > 1 else ():
                policies = results.policies(label, arm, seed)
                means = [results.means(label, arm, seed, policy)[metric] for policy in policies]
                for phase in phases([policy.kind for policy in policies], restarts):
                    points = zip(*((policies[index].step, means[index]) for index in phase), strict=True)
                    axis.plot(*points, color=look["color"], linewidth=0.7, alpha=0.4)
            _draw_policies(axis, of_arm, metric, look, results.titles[arm], restarts)
            rows.extend(
                (label, results.titles[arm], policy.step, policy.kind, policy.label, metric,
                 *ends_of(row.cells[metric]), " ".join(map(str, row.seeds)))
                for policy, row in of_arm.items()
            )  # fmt: skip

    shown = {label: results.ends(label) for label in labels}
    figure, axes = metric_panels(shown, draw)
    _finish_step_axes(figure, axes, results)
    bands = "Bands are 95 % bootstrap intervals over problems."
    if len(results.seeds) > 1:
        bands = "Thick: means over the seeds; bands: 95 % intervals over problems and seeds. Thin: single seeds."
    caption = (
        f"{bands} Diamonds are policies that RFT made; from each, the next RL phase starts anew (dotted lines). "
        "Circles and squares are policies within RL."
    )
    columns = ("set", "arm", "rl_step", "kind", "policy", "metric", "value", "low", "high", "seeds")
    title = "Accuracy and pass@k over RL steps (figure 4)"
    return picture(figure, "figure-4-curves", title, caption, columns, rows)


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
def step_curves(results: Results, name: str) -> Picture | None:
    """Draw one of `STEP_FIGURES`, a line an arm; None where no RL step has its metrics."""
    title, caption, metrics = STEP_FIGURES[name]
    window = 1 if len(results.seeds) == 1 else _WINDOW
    runs = {
        key: [{**row, "settled": row["groups_dropped"] / row["groups"] if row.get("groups") else None} for row in rows]
        for key, rows in results.steps.items()
    }
    every = [row for key, rows in runs.items() if key[0] in results.pair for row in rows]
    shown = [metric for metric in metrics if any(row.get(metric) is not None for row in every)]
    if not shown:
        return None
    figure, axes = panels(len(shown), None if len(shown) <= 3 else 2, height=2.6)
    for axis, metric in zip(axes, shown, strict=False):
        for arm, look in zip(results.pair, LOOKS, strict=False):
            own = [rows for key, rows in runs.items() if key[0] == arm]
            _draw_steps(axis, own, metric, look, results.titles[arm], window)
        axis.set_title(metrics[metric])
        if metric in _SHARES:
            percent_axis(axis)
        values = sorted(row[metric] for row in every if row.get(metric) is not None)
        if metric.startswith("grad_norm") and values[0] > 0 and values[-1] > _LOG_RATIO * values[len(values) // 2]:
            axis.set_yscale("log")
    _finish_step_axes(figure, axes, results)
    more = ("entropy", "grad_norm") if name == "figure-1-reward" else ()
    columns = ("arm", "seed", "rl_step", "iteration", *shown, *more)
    rows = [
        (*key, row["total_step"], row["iteration"], *map(row.get, columns[4:]))
        for key, own in runs.items()
        for row in own
    ]
    smoothed = f" Thick: means over seeds and {_WINDOW} RL steps; thin: single seeds." if window > 1 else ""
    dotted = " Dotted: each phase starts anew from its refined policy." if results.restarts(results.main) else ""
    return picture(figure, name, title, f"{caption}{smoothed}{dotted}", columns, rows)


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


@styled
def by_iteration(results: Results, steps: Steps) -> Picture | None:
    """Draw avg@n and pass@k of the greatest k by iteration, a row for each set (figure 3); the CSV has every metric."""
    config = results.arm_runs(results.main)[0].config
    phase, iterations = config.explore.steps, range(config.iterations + 1)
    labels = [label for label in results.sets if results.policies(label, results.main)]
    if not labels:
        return None
    policies = {
        (label, arm): {i: row for i in iterations if (row := _row_at(steps, label, arm, i * phase))}
        for label in labels
        for arm in results.pair
    }

    def draw(axis: Any, label: str, metric: str) -> None:
        for arm, look, shift in zip(results.pair, LOOKS, (-_SHIFT, _SHIFT), strict=False):
            of_arm = policies[label, arm]
            ends = [ends_of(row.cells[metric]) for row in of_arm.values()]
            errors = [[value - low for value, low, _ in ends], [high - value for value, _, high in ends]]
            axis.errorbar([i + shift for i in of_arm], [value for value, *_ in ends], yerr=errors,
                          markersize=5, elinewidth=1, capsize=2, **look, label=plain(results.titles[arm]))  # fmt: skip
        axis.set_xticks(list(iterations), [f"{i}\n{i * phase}" if i else "base" for i in iterations])

    shown = {label: results.ends(label) for label in labels}
    figure, axes = metric_panels(shown, draw)
    for axis in axes[-2:]:
        axis.set_xlabel("iteration; RL steps behind it")
    add_legend(figure, axes[0])
    same = f"; {results.titles[results.reference]}: the policy at the same RL step" if results.reference else ""
    caption = (
        f"{results.titles[results.main]}: the policy that each iteration ended with{same}. Bars are 95 % bootstrap "
        "intervals over problems."
    )
    columns = ("set", "iteration", "rl_step", "arm", "policy", "metric", "value", "low", "high")
    rows = [
        (label, i, i * phase, results.titles[arm], row.policy, metric, *ends_of(cell))
        for (label, arm), by_number in policies.items()
        for i, row in by_number.items()
        for metric, cell in row.cells.items()
    ]
    title = "Accuracy and pass@k by iteration (figure 3)"
    return picture(figure, "figure-3-iterations", title, caption, columns, rows)


def _row_at(steps: Steps, label: str, arm: str, step: int) -> Row | None:
    """Return the policy of an RL step: theta where it has just been refined, else the policy of RL."""
    rows = [row for policy, row in steps[label][arm].items() if policy.step == step]
    return rows[-1] if rows else None


@styled
def overfitting(results: Results, steps: Steps) -> Picture | None:
    """Draw reward, avg@n and pass@k of vanilla RL over RL steps, a line for each set (figure 1); None without it."""
    vanilla = [key[0] for key, run in results.runs.items() if run.config.arm == "vanilla-rl"]
    of_sets = {label: arms[vanilla[-1]] for label, arms in steps.items()} if vanilla else {}
    trained = next(rows for key, rows in results.steps.items() if key[0] == vanilla[-1]) if vanilla else []
    if not trained or all(len(of_set) < 2 for of_set in of_sets.values()):
        return None
    name = results.titles[vanilla[-1]]
    figure, axes = panels(3, height=2.6)
    rewards = [(row["total_step"], row.get("reward")) for row in trained]
    axes[0].plot(*zip(*rewards, strict=True), color=INK, marker=MARKERS[0], markersize=marker_size(len(rewards)))
    axes[0].set_title("training reward")
    rows: list[tuple[Any, ...]] = [("training", "reward", *reward) for reward in rewards]
    names: list[set[str]] = [set(), set()]
    for index, (label, of_set) in enumerate(of_sets.items()):
        colour, marker = COLOURS[index % len(COLOURS)], MARKERS[index % len(MARKERS)]
        for axis, metric, shown in zip(axes[1:], results.ends(label), names, strict=False):
            shown.add(metric)
            points = [(policy.step, ends_of(row.cells[metric])[0]) for policy, row in of_set.items()]
            axis.plot(*zip(*points, strict=True), color=colour, marker=marker, markersize=marker_size(len(points)),
                      label=plain(label))  # fmt: skip
            step, value = max(points, key=lambda point: point[1])
            axis.plot(step, value, linestyle="none", marker="o", markersize=11, markerfacecolor="none", color=colour)
            rows += [(label, metric, *point) for point in points]
    for axis, shown in zip(axes[1:], names, strict=True):
        axis.set_title(", ".join(sorted(shown)))
        axis.set_visible(bool(shown))
        percent_axis(axis)
    for axis in axes:
        axis.set_xlabel("RL step")
        axis.xaxis.get_major_locator().set_params(integer=True)
    add_legend(figure, axes[1], columns=3)
    caption = (
        f"{name} alone. RL overfits where its reward still rises while the others fall. Rings mark each line's "
        "highest point: picked on these very samples, it lies too high. Intervals are in figure 4."
    )
    title = f"Reward, accuracy and pass@k of {name} over RL steps (figure 1)"
    return picture(figure, "figure-1-overfitting", title, caption, ("set", "metric", "rl_step", "value"), rows)
