"""Vanilla RL alone: its reward rises while accuracy and pass@k on held-out problems need not (the paper's Figure 1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rloop_core.results.compare.arms import Arm, Checkpoint
from rloop_core.results.compare.figures import marker_size, shown_metrics
from rloop_core.results.plotting import COLOURS, INK, MARKERS, Picture, panels, percent_axis, picture, plain, styled


@styled
def overfitting(arms: tuple[Arm, Arm]) -> Picture | None:
    """Reward, avg@n and pass@k of the greatest k over RL steps, a line a problem set; None without vanilla RL."""
    arm = next((one for one in reversed(arms) if one.run.config.arm == "vanilla-rl"), None)
    if arm is None or not arm.steps or all(len(found) < 2 for found in arm.checkpoints.values()):
        return None
    figure, axes = panels(1, 3, height=2.6)
    axes[0].plot([row["total_step"] for row in arm.steps], [row.get("reward") for row in arm.steps], color=INK,
                 marker=MARKERS[0], markersize=marker_size(len(arm.steps)))  # fmt: skip
    axes[0].set_title("training reward")
    rows: list[tuple[Any, ...]] = [("training", "reward", row["total_step"], row.get("reward")) for row in arm.steps]
    names: list[set[str]] = [set(), set()]
    for place, (label, found) in enumerate(arm.checkpoints.items()):
        for axis, metric, own in zip(axes[1:], shown_metrics([arm], label), names, strict=False):
            _draw(axis, found, metric, place, label)
            own.add(metric)
            rows += [(label, metric, one.step, one.summary[metric]["value"]) for one in found]
    for axis, own in zip(axes[1:], names, strict=True):
        axis.set_title(", ".join(sorted(own)))
        axis.set_visible(bool(own))
        percent_axis(axis)
    for axis in axes:
        axis.set_xlabel("RL step")
        axis.xaxis.get_major_locator().set_params(integer=True)
    handles, labels = axes[1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=3)
    caption = (
        f"{arm.title} alone. RL overfits where its reward still rises while the others fall. Rings mark each line's "
        "highest point: picked on these very samples, it lies too high. Intervals are in Figure 4."
    )
    title = f"Figure 1. Reward, accuracy and pass@k of {arm.title} over RL steps"
    return picture(figure, "figure-1-overfitting", title, caption, ("set", "metric", "rl_step", "value"), rows)


def _draw(axis: Any, found: Sequence[Checkpoint], metric: str, place: int, label: str) -> None:
    """One line, with a ring at its highest point."""
    colour, marker = COLOURS[place % len(COLOURS)], MARKERS[place % len(MARKERS)]
    x, y = [one.step for one in found], [one.summary[metric]["value"] for one in found]
    axis.plot(x, y, color=colour, marker=marker, markersize=marker_size(len(x)), label=plain(label))
    top = y.index(max(y))
    axis.plot(x[top], y[top], linestyle="none", marker="o", markersize=11, markerfacecolor="none", color=colour)
