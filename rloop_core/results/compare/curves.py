"""Draw curves over RL steps and iterations: the paper's figures 1, 3, 4, 5c and 6, and the parts a study shares."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from rloop_core.results.compare.arms import Arm, Checkpoint, shared_sets, shown_metrics
from rloop_core.results.plotting import (
    COLOURS,
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

LOOKS: tuple[dict[str, Any], ...] = (
    {"color": COLOURS[0], "marker": MARKERS[0], "linestyle": "-"},
    {"color": COLOURS[1], "marker": MARKERS[1], "linestyle": (0, (5, 2))},
)
"""Colour, marker and line of the first and the second arm."""

THETA: dict[str, Any] = {
    "linestyle": "none", "marker": "D", "markersize": 6.5, "markerfacecolor": "white", "markeredgewidth": 1.6
}  # fmt: skip
"""Marker of a policy after RFT."""

_DOTTED = "Dotted: RLoop starts anew from its refined policy."
STEP_FIGURES: dict[str, tuple[str, str, dict[str, str]]] = {
    "figure-1-reward": (
        "Figure 1, for both arms. Training reward over RL steps",
        "All recorded rollouts of each RL step.",
        {"reward": "mean reward, as trained on", "accuracy": "share of correct rollouts"},
    ),
    "figure-5c-entropy": (
        "Figure 5c. Policy entropy over RL steps",
        "Entropy: mean over each RL step's updates; length: over its rollouts.",
        {"entropy": "policy entropy, nats a token", "length_mean": "completion length, tokens"},
    ),
    "figure-6-gradients": (
        "Figure 6. Gradient norm over RL steps",
        "Before clipping.",
        {
            "grad_norm": "gradient norm, mean of the updates",
            "grad_norm_max": "gradient norm, largest of the updates",
        },
    ),
}
"""Name of a figure: its title, its caption, and the axis title of each metric."""
_LOG_RATIO = 30  # a largest value this many times the median is only readable on a logarithmic axis
_METRICS = ("avg@", "pass@", "majority@")
_SHIFT = 0.05  # keeps the arms' error bars apart, in iterations


class Point(NamedTuple):
    """One policy on a curve: RL steps, kind (see `Checkpoint`), and a metric with its interval."""

    step: int
    kind: str
    value: float
    low: float | None = None
    high: float | None = None


def phases(kinds: Sequence[str], restarts: bool = True) -> list[list[int]]:
    """Group policies that RL alone connects; returns the places of each group of at least two.

    Thetas without any snapshot are one group. With `restarts` off, RL goes on from its own endpoint: all of RL is one
    group, without thetas.
    """
    if "snapshot" not in kinds:
        return [list(range(len(kinds)))] if kinds else []
    groups: list[list[int]] = []
    for place, kind in enumerate(kinds):
        if kind == "theta" and not restarts:
            continue
        if kind in ("base", "theta") or not groups:
            groups.append([place])
        else:
            groups[-1].append(place)
    return [group for group in groups if len(group) > 1]


def marker_size(points: int) -> float:
    """Return a marker size at which this many points do not run into one another."""
    return 4.5 if points < 16 else 2.5 if points < 64 else 0.0


def draw_policies(
    axis: Any, points: Sequence[Point], look: Mapping[str, Any], title: str, restarts: bool = True
) -> None:
    """Draw one line with its band for each RL phase, and a diamond for each policy after RFT."""
    label: str | None = plain(title)
    for places in phases([point.kind for point in points], restarts):
        steps, _, values, low, high = zip(*(points[place] for place in places), strict=True)
        axis.plot(steps, values, markersize=marker_size(len(points)), **look, label=label)
        axis.fill_between(steps, low, high, color=look["color"], alpha=0.13, linewidth=0)
        label = None
    thetas = [point for point in points if point.kind == "theta"]
    axis.plot([one.step for one in thetas], [one.value for one in thetas], color=look["color"], **THETA)


def metric_panels(metrics: Mapping[str, Sequence[str]], draw: Callable[[Any, str, str], None]) -> tuple[Any, list[Any]]:
    """Make a figure with a row for each set and a panel for each of its metrics, at most two.

    Args:
        metrics: Metrics by set label.
        draw: Called with axis, label and metric.
    """
    figure, axes = panels(len(metrics), 2, height=2.6, sharex=True)
    for row, (label, names) in enumerate(metrics.items()):
        for axis, metric in zip(axes[2 * row :], names, strict=False):
            draw(axis, label, metric)
            axis.set_title(f"{plain(label)}: {metric}")
            percent_axis(axis)
        for axis in axes[2 * row + len(names) : 2 * row + 2]:
            axis.set_visible(False)
    return figure, axes


def finish_step_axes(figure: Any, axes: Sequence[Any], arms: Iterable[Arm]) -> None:
    """Label the axes, draw a dotted line wherever RL starts anew from a refined policy, and add the legend."""
    configs = [arm.run.config for arm in arms if arm.restarts]
    resets = {i * config.explore.steps for config in configs for i in range(1, config.iterations)}
    for axis in axes:
        for step in sorted(resets):
            axis.axvline(step, color=MUTED, linewidth=0.9, linestyle=(0, (1, 2)), zorder=0)
        axis.xaxis.get_major_locator().set_params(integer=True)
    for axis in axes[-2:]:
        axis.set_xlabel("RL step")
    add_legend(figure, axes[0])


def add_legend(figure: Any, axis: Any, columns: int = 2) -> None:
    """Place the legend of one axis above the figure."""
    handles, labels = axis.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=columns)


@styled
def curves(arms: tuple[Arm, Arm]) -> Picture | None:
    """Draw avg@n and pass@k of the greatest k over RL steps, a row for each problem set (figure 4)."""
    labels = shared_sets(*arms)
    if not labels:
        return None
    rows: list[tuple[Any, ...]] = []

    def draw(axis: Any, label: str, metric: str) -> None:
        for arm, look in zip(arms, LOOKS, strict=True):
            checkpoints = arm.checkpoints[label]
            ends = [_ends(one, metric) for one in checkpoints]
            points = [Point(one.step, one.kind, *end) for one, end in zip(checkpoints, ends, strict=True)]
            draw_policies(axis, points, look, arm.title, arm.restarts)
            rows.extend(
                (label, arm.title, one.step, one.kind, one.label, metric, *end)
                for one, end in zip(checkpoints, ends, strict=True)
            )

    figure, axes = metric_panels({label: shown_metrics(arms, label) for label in labels}, draw)
    finish_step_axes(figure, axes, arms)
    caption = (
        "Bands are 95 % bootstrap intervals over problems. Diamonds are the policies that RFT made; from each, RLoop's "
        "next RL phase starts anew (dotted lines). Circles and squares are policies within RL."
    )
    columns = ("set", "arm", "rl_step", "kind", "policy", "metric", "value", "low", "high")
    title = "Figure 4. Accuracy and pass@k over RL steps, both arms"
    return picture(figure, "figure-4-curves", title, caption, columns, rows)


@styled
def by_iteration(arms: tuple[Arm, Arm]) -> Picture | None:
    """Draw avg@n and pass@k of the greatest k by iteration, a row for each set (figure 3); the CSV has every metric."""
    ours, theirs = arms
    phase, iterations = ours.run.config.explore.steps, range(ours.run.config.iterations + 1)
    labels = [label for label in shared_sets(ours, theirs) if ours.final(label)]
    if not labels:
        return None
    policies = {
        (label, arm.title): {i: policy for i in iterations if (policy := _policy_at(arm, label, i * phase))}
        for label in labels
        for arm in arms
    }

    def draw(axis: Any, label: str, metric: str) -> None:
        for arm, look, shift in zip(arms, LOOKS, (-_SHIFT, _SHIFT), strict=True):
            ends = {i: _ends(policy, metric) for i, policy in policies[label, arm.title].items()}
            errors = [
                [value - low for value, low, _ in ends.values()],
                [high - value for value, _, high in ends.values()],
            ]
            axis.errorbar([i + shift for i in ends], [value for value, _, _ in ends.values()], yerr=errors,
                          markersize=5, elinewidth=1, capsize=2, **look, label=plain(arm.title))  # fmt: skip
        axis.set_xticks(list(iterations), [f"{i}\n{i * phase}" if i else "base" for i in iterations])

    figure, axes = metric_panels({label: shown_metrics(arms, label) for label in labels}, draw)
    for axis in axes[-2:]:
        axis.set_xlabel("iteration; RL steps behind it")
    add_legend(figure, axes[0])
    caption = (
        f"{ours.title}: the policy that each iteration ended with, after refinement. {theirs.title}: the policy at the "
        "same RL step. Bars are 95 % bootstrap intervals over problems."
    )
    columns = ("set", "iteration", "rl_step", "arm", "policy", "metric", "value", "low", "high")
    rows = [
        (label, i, i * phase, title, policy.label, metric, *_ends(policy, metric))
        for (label, title), by_number in policies.items()
        for i, policy in by_number.items()
        for metric in policy.summary
        if metric.startswith(_METRICS)
    ]
    title = "Figure 3. Accuracy and pass@k by iteration"
    return picture(figure, "figure-3-iterations", title, caption, columns, rows)


def _policy_at(arm: Arm, label: str, step: int) -> Checkpoint | None:
    """Return the policy of an RL step: theta where it has just been refined, else the policy of RL."""
    policies = [one for one in arm.checkpoints.get(label, ()) if one.step == step]
    return next((one for one in policies if one.kind != "snapshot"), policies[0] if policies else None)


def _ends(checkpoint: Checkpoint, metric: str) -> tuple[float, float, float]:
    cell = checkpoint.summary[metric]
    return cell["value"], cell["low"], cell["high"]


@styled
def step_curves(arms: tuple[Arm, Arm], name: str) -> Picture | None:
    """Draw one of `STEP_FIGURES`; None where no RL step has its metrics."""
    title, caption, metrics = STEP_FIGURES[name]
    rows = [(arm, row) for arm in arms for row in arm.steps]
    shown = [metric for metric in metrics if any(row.get(metric) is not None for _, row in rows)]
    if not shown:
        return None
    figure, axes = panels(1, len(shown), height=2.6)
    for axis, metric in zip(axes, shown, strict=True):
        for arm, look in zip(arms, LOOKS, strict=True):
            label: str | None = plain(arm.title)
            for _, phase in groupby(arm.steps, key=lambda row: row["iteration"]):
                points = [(row["total_step"], row[metric]) for row in phase if row.get(metric) is not None]
                axis.plot([x for x, _ in points], [y for _, y in points], **look,
                          markersize=marker_size(len(arm.steps)), label=label)  # fmt: skip
                label = None
        axis.set_title(metrics[metric])
        if metric == "accuracy":
            percent_axis(axis)
        values = sorted(row[metric] for _, row in rows if row.get(metric) is not None)
        if metric.startswith("grad_norm") and values[0] > 0 and values[-1] > _LOG_RATIO * values[len(values) // 2]:
            axis.set_yscale("log")
    finish_step_axes(figure, axes, arms)
    columns = ("arm", "rl_step", "iteration", *shown)
    cells = [(arm.title, row["total_step"], row["iteration"], *map(row.get, shown)) for arm, row in rows]
    return picture(figure, name, title, f"{caption} {_DOTTED}", columns, cells)


@styled
def overfitting(arms: tuple[Arm, Arm]) -> Picture | None:
    """Draw reward, avg@n and pass@k of vanilla RL over RL steps, a line for each set (figure 1); None without it."""
    arm = next((arm for arm in reversed(arms) if arm.run.config.arm == "vanilla-rl"), None)
    if arm is None or not arm.steps or all(len(of_set) < 2 for of_set in arm.checkpoints.values()):
        return None
    figure, axes = panels(1, 3, height=2.6)
    rewards = [(row["total_step"], row.get("reward")) for row in arm.steps]
    axes[0].plot(*zip(*rewards, strict=True), color=INK, marker=MARKERS[0], markersize=marker_size(len(rewards)))
    axes[0].set_title("training reward")
    rows: list[tuple[Any, ...]] = [("training", "reward", *reward) for reward in rewards]
    names: list[set[str]] = [set(), set()]
    for place, (label, checkpoints) in enumerate(arm.checkpoints.items()):
        colour, marker = COLOURS[place % len(COLOURS)], MARKERS[place % len(MARKERS)]
        for axis, metric, shown in zip(axes[1:], shown_metrics([arm], label), names, strict=False):
            shown.add(metric)
            points = [(one.step, one.summary[metric]["value"]) for one in checkpoints]
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
        f"{arm.title} alone. RL overfits where its reward still rises while the others fall. Rings mark each line's "
        "highest point: picked on these very samples, it lies too high. Intervals are in Figure 4."
    )
    title = f"Figure 1. Reward, accuracy and pass@k of {arm.title} over RL steps"
    return picture(figure, "figure-1-overfitting", title, caption, ("set", "metric", "rl_step", "value"), rows)
