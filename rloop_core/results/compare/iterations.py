"""Metrics by RLoop's iteration, beside the other arm at the same RL steps (the paper's Figure 3)."""

from __future__ import annotations

from typing import Any

from rloop_core.results.compare.arms import Arm, Checkpoint, shared_sets
from rloop_core.results.compare.figures import LOOKS, shown_metrics
from rloop_core.results.plotting import Picture, panels, percent_axis, picture, plain, styled

_ALL = ("avg@", "pass@", "majority@")
_SHIFT = 0.05  # so that the arms' intervals do not cover each other


@styled
def by_iteration(arms: tuple[Arm, Arm]) -> Picture | None:
    """avg@n and pass@k of the greatest k by iteration, a row a problem set; the CSV holds every metric."""
    ours, theirs = arms
    phase = ours.run.config.explore.steps
    labels = [label for label in shared_sets(ours, theirs) if ours.final(label)]
    if not labels:
        return None
    figure, axes = panels(len(labels), 2, height=2.6, sharex=True)
    iterations = range(ours.run.config.iterations + 1)
    rows: list[tuple[Any, ...]] = []
    for place, label in enumerate(labels):
        metrics = shown_metrics(arms, label)
        points = [{i: one for i in iterations if (one := policy_at(arm, label, i * phase))} for arm in arms]
        for axis, metric in zip(axes[2 * place : 2 * place + 2], metrics, strict=False):
            for arm, look, own, shift in zip(arms, LOOKS, points, (-_SHIFT, _SHIFT), strict=True):
                _draw(axis, own, metric, look, shift, arm.title)
            axis.set_title(f"{plain(label)}: {metric}")
            axis.set_xticks(list(iterations), [f"{i}\n{i * phase}" if i else "base" for i in iterations])
            percent_axis(axis)
        if len(metrics) < 2:
            axes[2 * place + 1].set_visible(False)
        rows += [
            (label, i, i * phase, arm.title, one.label, metric, *(value[key] for key in ("value", "low", "high")))
            for arm, own in zip(arms, points, strict=True)
            for i, one in own.items()
            for metric, value in one.summary.items()
            if metric.startswith(_ALL)
        ]
    for axis in axes[-2:]:
        axis.set_xlabel("iteration; RL steps behind it")
    handles, names = axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper left", ncols=2)
    caption = (
        f"{ours.title}: the policy that each iteration ended with, after refinement. {theirs.title}: the policy at the "
        "same RL step. Bars are 95 % bootstrap intervals over problems."
    )
    columns = ("set", "iteration", "rl_step", "arm", "policy", "metric", "value", "low", "high")
    title = "Figure 3. Accuracy and pass@k by iteration"
    return picture(figure, "figure-3-iterations", title, caption, columns, rows)


def policy_at(arm: Arm, label: str, step: int) -> Checkpoint | None:
    """What an arm has come to after so many RL steps: theta where it has just been refined, else the policy of RL."""
    found = [one for one in arm.checkpoints.get(label, ()) if one.step == step]
    return next((one for one in found if one.kind != "snapshot"), found[0] if found else None)


def _draw(axis: Any, own: dict[int, Checkpoint], metric: str, look: dict[str, Any], shift: float, title: str) -> None:
    cells = {i: one.summary[metric] for i, one in own.items()}
    y = [cell["value"] for cell in cells.values()]
    errors = [
        [cell["value"] - cell["low"] for cell in cells.values()],
        [cell["high"] - cell["value"] for cell in cells.values()],
    ]
    axis.errorbar([i + shift for i in cells], y, yerr=errors, markersize=5, elinewidth=1, capsize=2, **look,
                  label=plain(title))  # fmt: skip
