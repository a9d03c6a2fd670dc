"""The report's figures, each from plain numbers; a figure without numbers is None."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

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
from rloop_core.results.report.evaluation import EvaluationRow, evaluation_tables
from rloop_core.stages.registry import STAGES

_LEARNING = {"reward": "mean reward, as trained on", "accuracy": "share of correct rollouts"}
_ENTROPY = {"entropy": "policy entropy, nats a token"}
_LENGTH = {"length_mean": "completion length, tokens", "truncated": "share of truncated rollouts"}
STEP_FIGURES: dict[str, tuple[str, str, dict[str, str]]] = {
    "learning": (
        "Reward and accuracy by RL step",
        "All recorded rollouts of each RL step, those that dynamic sampling kept from the update too. Each iteration "
        "starts again from its refined policy, so the curve falls back at the dashed lines.",
        _LEARNING,
    ),
    "health": (
        "Entropy, gradient norm and length by RL step",
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
        "All recorded rollouts of each RL step. Groups that are all correct or all wrong teach nothing.",
        {**_LEARNING, "settled": "share of groups all correct or all wrong", **_ENTROPY, **_LENGTH},
    ),
}
"""Name of a figure: its title, its caption, and the axis title of each metric."""
_SHARES = ("accuracy", "truncated", "settled")
MOST_DRAWN = 12
"""Most iterations that a figure shows side by side. The numbers beside it are of all of them."""
_MOST_BOUNDARIES = 60


@styled
def losses(values: Sequence[float], iteration: int) -> Picture | None:
    """Draw the loss of every update of RFT."""
    if not values:
        return None
    figure, (axis,) = panels(1, height=2.6)
    updates = range(1, len(values) + 1)
    marker = "o" if len(values) < 40 else None
    axis.plot(updates, values, color=_colour(iteration), marker=marker, markersize=3.5)
    axis.set_xlabel("update")
    axis.set_title("loss of the expert set's tokens")
    axis.set_ylim(bottom=0)
    axis.xaxis.get_major_locator().set_params(integer=True)
    rows = list(zip(updates, values, strict=True))
    caption = "Cross-entropy in nats a token, mean over each update's trajectories, before the update."
    return picture(figure, "losses", "Fine-tuning on the expert set", caption, ("update", "loss"), rows)


@styled
def by_step(name: str, steps: Sequence[Mapping[str, Any]]) -> Picture | None:
    """Draw one of `STEP_FIGURES`, a line an iteration; None where no RL step has its metrics."""
    title, caption, metrics = STEP_FIGURES[name]
    steps = [{**row, "settled": row["groups_dropped"] / row["groups"] if row.get("groups") else None} for row in steps]
    shown = [metric for metric in metrics if any(row.get(metric) is not None for row in steps)]
    if not shown:
        return None
    figure, axes = panels(len(shown), 2, sharex=True)
    by_iteration: dict[int, list[Mapping[str, Any]]] = {row["iteration"]: [] for row in steps}
    for row in steps:
        by_iteration[row["iteration"]].append(row)
    iterations = sorted(by_iteration)
    for axis, key in zip(axes, shown, strict=False):
        for iteration in iterations:
            rows = [row for row in by_iteration[iteration] if row.get(key) is not None]
            x, y = [row["total_step"] for row in rows], [row[key] for row in rows]
            axis.plot(x, y, color=_colour(iteration), marker="o" if len(x) < 4 else None, markersize=3.5)
            if iteration != iterations[0] and rows and len(iterations) <= _MOST_BOUNDARIES:
                axis.axvline(x[0] - 0.5, color=MUTED, linewidth=0.8, linestyle=(0, (3, 3)))
        axis.set_title(metrics[key])
        axis.margins(y=0.14)  # room for the iterations' names
        axis.xaxis.get_major_locator().set_params(integer=True)
        if key in _SHARES:
            percent_axis(axis)
            axis.set_ylim(0, max(0.01, axis.get_ylim()[1]))
    for axis in axes[-2:]:
        axis.set_xlabel("RL step")
    for iteration in iterations if len(iterations) <= MOST_DRAWN else ():
        # At the curve, instead of in a legend.
        first, last = by_iteration[iteration][0]["total_step"], by_iteration[iteration][-1]["total_step"]
        text = f"iteration {iteration}" if len(iterations) <= 3 else str(iteration)
        at, options = ((first + last) / 2, 0.02), {"ha": "center", "fontsize": 8, "color": _colour(iteration)}
        axes[0].annotate(text, at, xycoords=("data", "axes fraction"), **options)
    columns = ("iteration", "step", "total_step", *shown)
    return picture(figure, name, title, caption, columns, [[row.get(column) for column in columns] for row in steps])


@styled
def gains(rows: Sequence[EvaluationRow]) -> Picture | None:
    """Draw avg@n and pass@k by policy, a panel a problem set, with 95 % intervals."""
    if not rows:
        return None
    tables = evaluation_tables(rows)
    figure, axes = panels(len(tables), 2, height=3.0, sharey=True)
    # pass@1 is avg@n by definition: drawn, it would only hide the other. majority@n is in the table.
    names = [name for row in rows for name in row.metrics if name != "pass@1" and not name.startswith("majority@")]
    metrics = list(dict.fromkeys(names))
    for axis, table in zip(axes, tables, strict=False):
        for index, metric in enumerate(metrics):
            shown = [row for row in table.rows if metric in row.metrics]
            shift = (index - (len(metrics) - 1) / 2) * 0.06
            y, low, high = ([row.metrics[metric][end] for row in shown] for end in ("value", "low", "high"))
            below, above = ([abs(b - a) for a, b in zip(y, ends, strict=True)] for ends in (low, high))
            axis.errorbar(
                [row.iteration + 1 + shift for row in shown], y, yerr=[below, above], label=metric,
                color=_colour(index), marker=MARKERS[index % len(MARKERS)], markersize=5, elinewidth=1, capsize=2,
            )  # fmt: skip
        policies = {row.iteration + 1: _policy(row) for row in table.rows}
        ticks = _chosen(sorted(policies))
        axis.set_xticks(ticks, [policies[tick] for tick in ticks])
        axis.set_title(plain(table.label))
        percent_axis(axis)
    add_legend(figure, axes[0], min(6, len(metrics)))
    numbers = [
        (row.problem_set, row.policy, name, value["value"], value["low"], value["high"])
        for row in rows
        for name, value in row.metrics.items()
    ]
    caption = "Bars are 95 % bootstrap intervals over problems; differences to the base, paired, are in the table."
    columns = ("set", "policy", "metric", "value", "low", "high")
    return picture(figure, "gains", "avg@n and pass@k by iteration", caption, columns, numbers)


@styled
def funnel(ledgers: Mapping[int, Mapping[str, Any]]) -> Picture | None:
    """Draw the trajectories left after each step of the filter, by iteration."""
    if not ledgers:
        return None
    steps = [row["step"] for row in next(iter(ledgers.values()))["ledger"]]
    drawn = _chosen(list(ledgers))
    figure, (axis,) = panels(1, height=max(2.6, 0.24 * len(steps) * (len(drawn) + 1)))
    height = 0.8 / len(drawn)
    for index, iteration in enumerate(drawn):
        rows = ledgers[iteration]["ledger"]
        y = [step + index * height - 0.4 + height / 2 for step in range(len(rows))]
        width = [max(row["trajectories"], 0.7) for row in rows]
        axis.barh(y, width, height=height * 0.9, color=_colour(iteration), label=f"iteration {iteration}")
        for at, end, row in zip(y, width, rows, strict=True) if len(drawn) <= 5 else ():
            text = f" {row['trajectories']:,} ({row['problems']:,} problems)"
            axis.text(end, at, text, va="center", fontsize=7.5, color=INK)
    most = max(row["trajectories"] for ledger in ledgers.values() for row in ledger["ledger"])
    axis.set_xscale("log")
    axis.set_xlim(0.7, 0.7 * max(2.0, most / 0.7) ** 1.35)  # room for the numbers beside the longest bar
    axis.set_yticks(range(len(steps)), steps)
    axis.invert_yaxis()
    axis.grid(axis="y", visible=False)
    axis.set_xlabel("trajectories left (log scale)")
    figure.legend(loc="outside upper left", ncols=min(4, len(drawn)))
    columns = ("iteration", "step", "trajectories", "problems")
    numbers = [(iteration, *(row[column] for column in columns[1:]))
               for iteration, ledger in ledgers.items() for row in ledger["ledger"]]  # fmt: skip
    caption = "From everything recorded (top) to the expert set (bottom)." + _left_out(ledgers)
    return picture(figure, "filter", "The filter's ledger", caption, columns, numbers)


@styled
def success_rates(rates: Mapping[int, Sequence[float]], threshold: float) -> Picture | None:
    """Draw problems by success rate over the whole RL phase, with the band of hard problems marked."""
    import numpy as np

    rates = {iteration: values for iteration, values in rates.items() if values}
    if not rates:
        return None
    edges = np.linspace(0, 1, 21)
    unsolved = {iteration: sum(value == 0 for value in values) for iteration, values in rates.items()}
    counts = {
        iteration: np.histogram([value for value in values if value > 0], bins=edges)[0].tolist()
        for iteration, values in rates.items()
    }
    numbers: list[tuple[Any, ...]] = []
    for iteration in rates:
        numbers.append((iteration, "never solved", "", unsolved[iteration]))
        numbers += [(iteration, f"{edges[i]:.2f}", f"{edges[i + 1]:.2f}", n) for i, n in enumerate(counts[iteration])]
    drawn = _chosen(list(rates))
    figure, axes = panels(len(drawn), 3, height=2.4, sharey=True)
    colours = [COLOURS[1] if right <= threshold + 1e-9 else COLOURS[0] for right in edges[1:]]
    bars = {"width": 0.05, "align": "edge", "edgecolor": "white", "linewidth": 0.6}
    for axis, iteration in zip(axes, drawn, strict=False):
        axis.axvspan(0, threshold, color=COLOURS[4], alpha=0.18, linewidth=0)
        axis.bar(edges[:-1], counts[iteration], color=colours, **bars)
        axis.bar(-0.06, unsolved[iteration], color=MUTED, **bars)
        axis.set_title(f"iteration {iteration}")
        axis.set_xlabel("success rate (grey: never solved)")
        percent_axis(axis, "x")
    axes[0].set_ylabel("problems")
    caption = f"Shaded: hard problems, solved but in less than {threshold:.0%} of all attempts of the RL phase."
    caption += _left_out(rates)
    columns = ("iteration", "rate_from", "rate_to", "problems")
    return picture(figure, "success-rates", "How often training problems were solved", caption, columns, numbers)


@styled
def seconds(rows: Sequence[tuple[int, str, float]]) -> Picture | None:
    """Draw the seconds of each stage, stacked by iteration, from rows of (iteration, stage, seconds)."""
    if not rows:
        return None
    by_iteration: dict[int, dict[str, float]] = {iteration: {} for iteration in sorted({row[0] for row in rows})}
    for iteration, stage, value in rows:
        by_iteration[iteration][stage] = value
    iterations = _chosen(list(by_iteration))
    figure, (axis,) = panels(1, height=0.8 + 0.42 * len(iterations))
    total = max(sum(by_iteration[iteration].values()) for iteration in iterations)
    left = [0.0] * len(iterations)
    for stage, facts in STAGES.items():
        width = [by_iteration[iteration].get(stage, 0.0) for iteration in iterations]
        axis.barh(
            range(len(iterations)), width, left=left, color=facts.colour, label=stage, height=0.62, edgecolor="white"
        )
        ink = INK if stage == "evaluate" else "white"
        for index, (start, length) in enumerate(zip(left, width, strict=True)):
            if length > 0.07 * total:
                axis.text(start + length / 2, index, f"{length:,.0f}", ha="center", va="center", color=ink, fontsize=8)
        left = [start + length for start, length in zip(left, width, strict=True)]
    axis.set_yticks(range(len(iterations)), ["base" if i < 0 else f"iteration {i}" for i in iterations])
    axis.invert_yaxis()
    axis.grid(axis="y", visible=False)
    axis.set_xlabel("seconds")
    figure.legend(loc="outside upper left", ncols=5)
    caption = (
        "As each stage took in the attempt that finished it. An evaluation may have run beside the next exploration."
    ) + _left_out(by_iteration)
    return picture(figure, "seconds", "Seconds by stage", caption, ("iteration", "stage", "seconds"), rows)


def _colour(index: int) -> str:
    return COLOURS[index % len(COLOURS)]


def _chosen(iterations: Sequence[int]) -> list[int]:
    """Return all, or as many as a figure can show: the first, the last, and evenly between."""
    if len(iterations) <= MOST_DRAWN:
        return list(iterations)
    return [iterations[round(index * (len(iterations) - 1) / (MOST_DRAWN - 1))] for index in range(MOST_DRAWN)]


def _left_out(iterations: Collection[int]) -> str:
    """Return what a caption says if not all are drawn."""
    if len(iterations) <= MOST_DRAWN:
        return ""
    return f" Of {len(iterations)} iterations {MOST_DRAWN} are drawn; the CSV file has all."


def _policy(row: EvaluationRow) -> str:
    return rf"$\theta_{{{row.iteration + 1}}}$" if row.policy.startswith("theta_") else row.policy
