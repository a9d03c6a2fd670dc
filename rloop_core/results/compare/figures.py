"""Both arms on one axis of RL steps: accuracy, pass@k, reward, entropy, gradient norm (the paper's 1, 4, 5c, 6)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from rloop_core.results.compare.arms import Arm, Checkpoint, shared_sets
from rloop_core.results.plotting import COLOURS, MARKERS, MUTED, Picture, panels, percent_axis, picture, plain, styled

LOOKS: tuple[dict[str, Any], ...] = (
    {"color": COLOURS[0], "marker": MARKERS[0], "linestyle": "-"},
    {"color": COLOURS[1], "marker": MARKERS[1], "linestyle": (0, (5, 2))},
)
"""How RLoop and vanilla RL are drawn: told apart by colour, marker and line."""

THETA: dict[str, Any] = {
    "linestyle": "none", "marker": "D", "markersize": 6.5, "markerfacecolor": "white", "markeredgewidth": 1.6
}  # fmt: skip
"""How a policy is drawn that RFT made."""

REWARD = (("reward", "mean reward, as trained on", False), ("accuracy", "share of correct rollouts", True))
ENTROPY = (
    ("entropy", "policy entropy, nats a token", False),
    ("length_mean", "completion length, tokens", False),
)
GRADIENTS = (
    ("grad_norm", "gradient norm, mean of the updates", False),
    ("grad_norm_max", "gradient norm, largest of the updates", False),
)
_DOTTED = "Dotted: RLoop starts anew from its refined policy."
_EXPLODES = 30  # a largest value so many times the median is only readable on a logarithmic axis


@styled
def curves(arms: tuple[Arm, Arm]) -> Picture | None:
    """avg@n and pass@k of the greatest k over RL steps, a row a problem set."""
    labels = shared_sets(*arms)
    if not labels:
        return None
    figure, axes = panels(len(labels), 2, height=2.6, sharex=True)
    rows: list[tuple[Any, ...]] = []
    for place, label in enumerate(labels):
        metrics = shown_metrics(arms, label)
        for axis, metric in zip(axes[2 * place : 2 * place + 2], metrics, strict=False):
            for arm, look in zip(arms, LOOKS, strict=True):
                own = [one for one in arm.checkpoints[label] if metric in one.summary]
                _draw_arm(axis, own, metric, look, arm)
                rows += [
                    (label, arm.title, one.step, one.kind, one.label, metric,
                     *(one.summary[metric][key] for key in ("value", "low", "high")))
                    for one in own
                ]  # fmt: skip
            axis.set_title(f"{plain(label)}: {metric}")
            percent_axis(axis)
        if len(metrics) < 2:
            axes[2 * place + 1].set_visible(False)
    for axis in axes[-2:]:
        axis.set_xlabel("RL step")
    mark_resets(axes, arms)
    _legend(figure, axes[0])
    caption = (
        "Bands are 95 % bootstrap intervals over problems. Diamonds are the policies that RFT made; from each, RLoop's "
        "next RL phase starts anew (dotted lines). Circles and squares are policies within RL."
    )
    columns = ("set", "arm", "rl_step", "kind", "policy", "metric", "value", "low", "high")
    title = "Figure 4. Accuracy and pass@k over RL steps, both arms"
    return picture(figure, "figure-4-curves", title, caption, columns, rows)


def shown_metrics(arms: Sequence[Arm], label: str) -> list[str]:
    """avg@n and the pass@k with the greatest k, of those that every policy of these arms has."""
    common = set.intersection(*(set(one.summary) for arm in arms for one in arm.checkpoints[label]))
    averages = sorted(name for name in common if name.startswith("avg@"))
    passes = sorted((name for name in common if name.startswith("pass@")), key=lambda name: int(name[5:]))
    return [*averages[:1], *(name for name in passes[-1:] if name != "pass@1")]


def _draw_arm(axis: Any, own: Sequence[Checkpoint], metric: str, look: dict[str, Any], arm: Arm) -> None:
    """One line a phase, begun where the phase began: at theta_i, which the line of the phase before does not reach."""
    title: str | None = arm.title
    for phase in phases(own, arm.restarts):
        x = [one.step for one in phase]
        y, low, high = ([one.summary[metric][key] for one in phase] for key in ("value", "low", "high"))
        axis.plot(x, y, markersize=marker_size(len(own)), **look, label=title)
        axis.fill_between(x, low, high, color=look["color"], alpha=0.13, linewidth=0)
        title = None
    thetas = [one for one in own if one.kind == "theta"]
    values = [one.summary[metric]["value"] for one in thetas]
    axis.plot([one.step for one in thetas], values, color=look["color"], **THETA)


def marker_size(points: int) -> float:
    """Of a line with so many points: markers must not run into one another."""
    return 4.5 if points < 16 else 2.5 if points < 64 else 0.0


def phases(own: Sequence[Checkpoint], restarts: bool = True) -> list[list[Checkpoint]]:
    """Runs of policies that came out of one another by RL alone; thetas alone, without snapshots, are one run.

    Where RL goes on from its own endpoint instead of starting anew from theta, all of RL is one run, without thetas.
    """
    if not any(one.kind == "snapshot" for one in own):
        return [list(own)] if own else []
    found: list[list[Checkpoint]] = []
    for one in own if restarts else [one for one in own if one.kind != "theta"]:
        if one.kind in ("base", "theta") or not found:
            found.append([one])
        else:
            found[-1].append(one)
    return [phase for phase in found if len(phase) > 1]


def reward(arms: tuple[Arm, Arm]) -> Picture | None:
    """Training reward of both arms."""
    caption = f"All recorded rollouts of each RL step. {_DOTTED}"
    return _by_step(arms, REWARD, "figure-1-reward", "Figure 1, for both arms. Training reward over RL steps", caption)


def entropy(arms: tuple[Arm, Arm]) -> Picture | None:
    """Entropy of both arms, and how long their completions are."""
    caption = f"Entropy: mean over each RL step's updates; length: over its rollouts. {_DOTTED}"
    return _by_step(arms, ENTROPY, "figure-5c-entropy", "Figure 5c. Policy entropy over RL steps", caption)


def gradients(arms: tuple[Arm, Arm]) -> Picture | None:
    """Gradient norm of both arms."""
    caption = f"Before clipping. {_DOTTED}"
    return _by_step(arms, GRADIENTS, "figure-6-gradients", "Figure 6. Gradient norm over RL steps", caption)


@styled
def _by_step(
    arms: tuple[Arm, Arm], wanted: Sequence[tuple[str, str, bool]], name: str, title: str, caption: str
) -> Picture | None:
    shown = [one for one in wanted if any(row.get(one[0]) is not None for arm in arms for row in arm.steps)]
    if not shown:
        return None
    figure, axes = panels(1, len(shown), height=2.6)
    for axis, (key, label, share) in zip(axes, shown, strict=True):
        for arm, look in zip(arms, LOOKS, strict=True):
            said: str | None = arm.title
            for _, group in groupby(arm.steps, key=lambda row: row["iteration"]):
                own = [row for row in group if row.get(key) is not None]
                x, y = [row["total_step"] for row in own], [row[key] for row in own]
                axis.plot(x, y, **look, markersize=marker_size(len(arm.steps)),
                          label=said)  # fmt: skip
                said = None
        axis.set_title(label)
        axis.set_xlabel("RL step")
        if share:
            percent_axis(axis)
        values = sorted(row[key] for arm in arms for row in arm.steps if row.get(key) is not None)
        if key.startswith("grad_norm") and values[0] > 0 and values[-1] > _EXPLODES * values[len(values) // 2]:
            axis.set_yscale("log")
    mark_resets(axes, arms)
    _legend(figure, axes[0])
    columns = ("arm", "rl_step", "iteration", *(key for key, _, _ in shown))
    rows = [
        (arm.title, row["total_step"], row["iteration"], *(row.get(key) for key, _, _ in shown))
        for arm in arms
        for row in arm.steps
    ]
    return picture(figure, name, title, caption, columns, rows)


def mark_resets(axes: Sequence[Any], arms: Sequence[Arm]) -> None:
    """A dotted line wherever RL starts anew from a refined policy."""
    configs = [arm.run.config for arm in arms if arm.restarts]
    resets = {i * config.explore.steps for config in configs for i in range(1, config.iterations)}
    for axis in axes:
        for step in sorted(resets):
            axis.axvline(step, color=MUTED, linewidth=0.9, linestyle=(0, (1, 2)), zorder=0)
        axis.xaxis.get_major_locator().set_params(integer=True)


def _legend(figure: Any, axis: Any) -> None:
    handles, labels = axis.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=2)
