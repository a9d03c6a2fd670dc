"""Draw every figure of a comparison, and say which of them stands for which figure of the paper."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from rloop_core.results.compare.comparison import Comparison, stored_rows
from rloop_core.results.compare.matrices import differential_matrix, similarity_curves, transition_matrices
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
from rloop_core.results.report.figures import funnel
from rloop_core.results.study.curves import LOOKS, curves, marker_size, metric_panels, shown_metrics, step_curves
from rloop_core.results.study.record import StudyRecord
from rloop_core.results.study.table import Steps
from rloop_core.results.tables import Row, ends_of

_SHIFT = 0.05  # keeps the arms' error bars apart, in iterations
_SNAPSHOTS = "evaluated snapshots (explore.snapshot_every, evaluate.snapshots=true)"
_PAPER = (
    ("Figure 1", "reward, accuracy and pass@k of vanilla RL", ("figure-1-overfitting", "figure-1-reward"),
     f"a vanilla-RL arm with {_SNAPSHOTS}"),
    ("Figure 2", "learning, forgetting and similarity between policies",
     ("figure-2-transitions", "figure-5b-similarity"), "two evaluated policies of an arm"),
    ("Figure 3", "accuracy and pass@k by RLoop's iteration", ("figure-3-iterations",), "an evaluated theta"),
    ("Figure 4", "accuracy of both arms at the same RL steps", ("figure-4-curves",),
     "a problem set on which both are evaluated"),
    ("Figure 5a", "differential forgetting", ("figure-5a-differential",), f"in both arms, {_SNAPSHOTS}"),
    ("Figure 5b", "similarity of solutions, both arms", ("figure-5b-similarity",), "two evaluated policies of an arm"),
    ("Figure 5c", "policy entropy, both arms", ("figure-5c-entropy",), "a finished exploration"),
    ("Figure 6", "gradient norm, both arms", ("figure-6-gradients",), "a finished exploration"),
)  # fmt: skip


@dataclass(frozen=True)
class Figures:
    """Pictures over all sets, of each set by its label, and of each expert set's filter."""

    overall: list[Picture] = field(default_factory=list)
    by_set: dict[str, list[Picture]] = field(default_factory=dict)
    experts: list[Picture] = field(default_factory=list)

    @property
    def every(self) -> list[Picture]:
        """All of them, in the page's order."""
        return [*self.overall, *(one for of_set in self.by_set.values() for one in of_set), *self.experts]


def draw(comparison: Comparison) -> Figures:
    """Draw every figure that there are numbers for."""
    record, steps = comparison.record, stored_rows(comparison.record)
    overall = (
        overfitting(record, steps),
        step_curves(record, "figure-1-reward"),
        by_iteration(record, steps),
        figure_4(record),
        step_curves(record, "figure-5c-entropy"),
        step_curves(record, "figure-6-gradients"),
    )
    by_set = {}
    for index, of_set in enumerate(comparison.transitions):
        pictures = (
            transition_matrices(of_set, f"set-{index:02d}-figure-2-transitions"),
            differential_matrix(of_set, f"set-{index:02d}-figure-5a-differential"),
            similarity_curves(of_set, f"set-{index:02d}-figure-5b-similarity"),
        )
        by_set[of_set.label] = [picture for picture in pictures if picture]
    experts = [
        replace(picture, name=f"arm-{index:02d}-filter", title=f"{arm.title}: {picture.title}")
        for index, (arm, ledgers) in enumerate(zip(comparison.arms, comparison.ledgers, strict=True))
        if (picture := funnel(ledgers))
    ]
    return Figures([picture for picture in overall if picture], by_set, experts)


def figure_4(record: StudyRecord) -> Picture | None:
    """Draw accuracy and pass@k of both arms over RL steps."""
    title = "Figure 4. Accuracy and pass@k over RL steps, both arms"
    return curves(record, stored_rows(record), "figure-4-curves", title)


def paper_figures(figures: Figures) -> list[dict[str, Any]]:
    """Return the paper's figures in its order, each with our pictures of the same.

    Returns:
        For each figure `name`, what it `shows` in the paper, `pictures` (titles, each with its pictures' names by
        problem set), and what it `needs`: empty unless the first picture is missing.
    """
    rows: list[dict[str, Any]] = []
    for name, shows, kinds, needs in _PAPER:
        pictures = [_of_kind(kind, figures) for kind in kinds]
        needs = "" if pictures[0] else needs
        rows.append({"name": name, "shows": shows, "pictures": [one for one in pictures if one], "needs": needs})
    return rows


def _of_kind(kind: str, figures: Figures) -> tuple[str, dict[str, str]] | None:
    """Return a title with the names of its pictures by label; the label is empty for a picture over all sets."""
    for one in figures.overall:
        if one.name == kind:
            return one.title, {"": one.name}
    of_sets = {label: one for label, pictures in figures.by_set.items() for one in pictures if one.name.endswith(kind)}
    if not of_sets:
        return None
    title = next(iter(of_sets.values())).title.partition(" on ")[0]
    return title, {label: one.name for label, one in of_sets.items()}


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
    figure, axes = panels(3, height=2.6)
    rewards = [(row["total_step"], row.get("reward")) for row in trained]
    axes[0].plot(*zip(*rewards, strict=True), color=INK, marker=MARKERS[0], markersize=marker_size(len(rewards)))
    axes[0].set_title("training reward")
    rows: list[tuple[Any, ...]] = [("training", "reward", *reward) for reward in rewards]
    names: list[set[str]] = [set(), set()]
    for index, (label, of_set) in enumerate(of_sets.items()):
        colour, marker = COLOURS[index % len(COLOURS)], MARKERS[index % len(MARKERS)]
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
