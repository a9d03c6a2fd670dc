"""Draw what a comparison alone has: accuracy by iteration (figure 3), and the overfitting of vanilla RL (figure 1)."""

from __future__ import annotations

from typing import Any

from rloop_core.results.plotting import (
    COLOURS,
    INK,
    MARKERS,
    Picture,
    add_legend,
    panels,
    percent_axis,
    picture,
    plain,
    styled,
)
from rloop_core.results.study.curves import LOOKS, marker_size, metric_panels, shown_metrics
from rloop_core.results.study.record import StudyRecord
from rloop_core.results.study.table import Steps
from rloop_core.results.tables import Row, ends_of

_SHIFT = 0.05  # keeps the arms' error bars apart, in iterations


@styled
def by_iteration(record: StudyRecord, steps: Steps) -> Picture | None:
    """Draw avg@n and pass@k of the greatest k by iteration, a row for each set (figure 3); the CSV has every metric."""
    config = record.runs(record.main)[0].run.config
    phase, iterations = config.explore.steps, range(config.iterations + 1)
    labels = [label for label in record.sets if record.final(label, record.main)]
    if not labels:
        return None
    policies = {
        (label, arm): {i: row for i in iterations if (row := _row_at(steps, label, arm, i * phase))}
        for label in labels
        for arm in record.pair
    }

    def draw(axis: Any, label: str, metric: str) -> None:
        for arm, look, shift in zip(record.pair, LOOKS, (-_SHIFT, _SHIFT), strict=True):
            of_arm = policies[label, arm]
            ends = [ends_of(row.cells[metric]) for row in of_arm.values()]
            errors = [[value - low for value, low, _ in ends], [high - value for value, _, high in ends]]
            axis.errorbar([i + shift for i in of_arm], [value for value, *_ in ends], yerr=errors,
                          markersize=5, elinewidth=1, capsize=2, **look, label=plain(record.titles[arm]))  # fmt: skip
        axis.set_xticks(list(iterations), [f"{i}\n{i * phase}" if i else "base" for i in iterations])

    shown = {label: shown_metrics(row for arm in record.pair for row in steps[label][arm].values()) for label in labels}
    figure, axes = metric_panels(shown, draw)
    for axis in axes[-2:]:
        axis.set_xlabel("iteration; RL steps behind it")
    add_legend(figure, axes[0])
    ours, theirs = (record.titles[arm] for arm in record.pair)
    caption = (
        f"{ours}: the policy that each iteration ended with, after refinement. {theirs}: the policy at the "
        "same RL step. Bars are 95 % bootstrap intervals over problems."
    )
    columns = ("set", "iteration", "rl_step", "arm", "policy", "metric", "value", "low", "high")
    rows = [
        (label, i, i * phase, record.titles[arm], row.policy, metric, *ends_of(cell))
        for (label, arm), by_number in policies.items()
        for i, row in by_number.items()
        for metric, cell in row.cells.items()
    ]
    title = "Figure 3. Accuracy and pass@k by iteration"
    return picture(figure, "figure-3-iterations", title, caption, columns, rows)


def _row_at(steps: Steps, label: str, arm: str, step: int) -> Row | None:
    """Return the policy of an RL step: theta where it has just been refined, else the policy of RL."""
    rows = [row for policy, row in steps[label][arm].items() if policy.step == step]
    return rows[-1] if rows else None


@styled
def overfitting(record: StudyRecord, steps: Steps) -> Picture | None:
    """Draw reward, avg@n and pass@k of vanilla RL over RL steps, a line for each set (figure 1); None without it."""
    vanilla = [key[0] for key, run in record.arms.items() if run.run.config.arm == "vanilla-rl"]
    of_sets = {label: arms[vanilla[-1]] for label, arms in steps.items()} if vanilla else {}
    trained = record.runs(vanilla[-1])[0].steps if vanilla else []
    if not trained or all(len(of_set) < 2 for of_set in of_sets.values()):
        return None
    name = record.titles[vanilla[-1]]
    figure, axes = panels(1, 3, height=2.6)
    rewards = [(row["total_step"], row.get("reward")) for row in trained]
    axes[0].plot(*zip(*rewards, strict=True), color=INK, marker=MARKERS[0], markersize=marker_size(len(rewards)))
    axes[0].set_title("training reward")
    rows: list[tuple[Any, ...]] = [("training", "reward", *reward) for reward in rewards]
    names: list[set[str]] = [set(), set()]
    for place, (label, of_set) in enumerate(of_sets.items()):
        colour, marker = COLOURS[place % len(COLOURS)], MARKERS[place % len(MARKERS)]
        for axis, metric, shown in zip(axes[1:], shown_metrics(of_set.values()), names, strict=False):
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
        "highest point: picked on these very samples, it lies too high. Intervals are in Figure 4."
    )
    title = f"Figure 1. Reward, accuracy and pass@k of {name} over RL steps"
    return picture(figure, "figure-1-overfitting", title, caption, ("set", "metric", "rl_step", "value"), rows)
