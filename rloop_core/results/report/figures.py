"""The report's figures, each from plain numbers; a figure without numbers is left out."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

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
from rloop_core.results.report.evaluation import EvaluationRow

_LEARNING = (("reward", "mean reward, as trained on", False), ("accuracy", "share of correct rollouts", True))
_HEALTH = (
    ("entropy", "policy entropy, nats a token", False),
    ("grad_norm", "gradient norm, before clipping", False),
    ("length_mean", "completion length, tokens", False),
    ("truncated", "share of truncated rollouts", True),
    ("drift", "vLLM's distance from the trainer, nats a token", False),
)
_PHASE = (
    *_LEARNING,
    ("settled", "share of groups all correct or all wrong", True),
    ("entropy", "policy entropy, nats a token", False),
    ("length_mean", "completion length, tokens", False),
    ("truncated", "share of truncated rollouts", True),
)
MOST_DRAWN = 12
"""Iterations that a figure shows side by side; of more, a choice. The numbers beside it are of all of them."""
_MOST_BOUNDARIES = 60
STAGE_COLOURS = dict(zip(("explore", "harvest", "filter", "rft", "evaluate"), COLOURS, strict=False))


def learning(steps: Sequence[Mapping[str, Any]]) -> Picture | None:
    """Reward and accuracy by RL step across iterations."""
    caption = (
        "All recorded rollouts of each RL step, those that dynamic sampling kept from the update too. Each iteration "
        "starts again from its refined policy, so the curve falls back at the dashed lines."
    )
    return _by_step(steps, _LEARNING, "learning", "Reward and accuracy by RL step", caption)


def health(steps: Sequence[Mapping[str, Any]]) -> Picture | None:
    """Entropy, gradient norm, length and truncation by RL step."""
    caption = "Falling entropy and growing gradients or truncation announce overfitting and instability."
    return _by_step(steps, _HEALTH, "health", "Entropy, gradient norm and length by RL step", caption)


def phase(steps: Sequence[Mapping[str, Any]]) -> Picture | None:
    """One RL phase in six curves: what was learned, and what it cost in variety."""
    rows = [{**row, "settled": row["groups_dropped"] / row["groups"] if row.get("groups") else None} for row in steps]
    caption = "All recorded rollouts of each RL step. Groups that are all correct or all wrong teach nothing."
    return _by_step(rows, _PHASE, "phase", "The RL phase, by RL step", caption)


@styled
def losses(values: Sequence[float], iteration: int) -> Picture | None:
    """The loss of every update of RFT."""
    if not values:
        return None
    figure, (axis,) = panels(1, 1, height=2.6)
    updates = range(1, len(values) + 1)
    marker = "o" if len(values) < 40 else None
    axis.plot(updates, values, color=COLOURS[iteration % len(COLOURS)], marker=marker, markersize=3.5)
    axis.set_xlabel("update")
    axis.set_title("loss of the expert set's tokens")
    axis.set_ylim(bottom=0)
    axis.xaxis.get_major_locator().set_params(integer=True)
    rows = list(zip(updates, values, strict=True))
    caption = "Cross-entropy in nats a token, mean over each update's trajectories, before the update."
    return picture(figure, "losses", "Fine-tuning on the expert set", caption, ("update", "loss"), rows)


@styled
def _by_step(
    steps: Sequence[Mapping[str, Any]], curves: Sequence[tuple[str, str, bool]], name: str, title: str, caption: str
) -> Picture | None:
    shown = [curve for curve in curves if any(row.get(curve[0]) is not None for row in steps)]
    if not shown:
        return None
    figure, axes = panels(-(-len(shown) // 2), min(2, len(shown)), sharex=True)
    iterations = sorted({row["iteration"] for row in steps})
    by_iteration: dict[int, list[Mapping[str, Any]]] = {iteration: [] for iteration in iterations}
    for row in steps:
        by_iteration[row["iteration"]].append(row)
    for axis, (key, label, share) in zip(axes, shown, strict=False):
        for iteration in iterations:
            own = [row for row in by_iteration[iteration] if row.get(key) is not None]
            x, y = [row["total_step"] for row in own], [row[key] for row in own]
            axis.plot(x, y, color=COLOURS[iteration % len(COLOURS)], marker="o" if len(x) < 4 else None, markersize=3.5)
            if iteration != iterations[0] and own and len(iterations) <= _MOST_BOUNDARIES:
                axis.axvline(x[0] - 0.5, color=MUTED, linewidth=0.8, linestyle=(0, (3, 3)))
        axis.set_title(label)
        axis.margins(y=0.14)  # room for the iterations' names
        axis.xaxis.get_major_locator().set_params(integer=True)
        if share:
            percent_axis(axis)
            axis.set_ylim(0, max(0.01, axis.get_ylim()[1]))
    for axis in axes[len(shown) :]:
        axis.set_visible(False)
    for axis in axes[-2:]:
        axis.set_xlabel("RL step")
    _name_iterations(axes[0], steps, iterations)
    columns = ("iteration", "step", "total_step", *(key for key, _, _ in shown))
    return picture(figure, name, title, caption, columns, [[row.get(column) for column in columns] for row in steps])


def _name_iterations(axis: Any, steps: Sequence[Mapping[str, Any]], iterations: Sequence[int]) -> None:
    """Name each iteration where its curve is, instead of in a legend that must be looked up."""
    if len(iterations) > MOST_DRAWN:
        return
    for iteration in iterations:
        own = [row["total_step"] for row in steps if row["iteration"] == iteration]
        label = f"iteration {iteration}" if len(iterations) <= 3 else str(iteration)
        axis.annotate(
            label,
            ((own[0] + own[-1]) / 2, 0.02),
            xycoords=("data", "axes fraction"),
            ha="center",
            fontsize=8,
            color=COLOURS[iteration % len(COLOURS)],
        )


@styled
def gains(rows: Sequence[EvaluationRow]) -> Picture | None:
    """avg@n and pass@k by policy, a panel a problem set, with 95 % intervals."""
    if not rows:
        return None
    sets = list(dict.fromkeys(row.problem_set for row in rows))
    columns = min(2, len(sets))
    figure, axes = panels(-(-len(sets) // columns), columns, height=3.0, sharey=True)
    # pass@1 is avg@n by definition: drawn, it would only hide the other. majority@n is in the table.
    drawn = [name for row in rows for name in row.metrics if name != "pass@1" and not name.startswith("majority@")]
    metrics = list(dict.fromkeys(drawn))
    for axis, label in zip(axes, sets, strict=False):
        own = [row for row in rows if row.problem_set == label]
        for place, metric in enumerate(metrics):
            have = [row for row in own if metric in row.metrics]
            shift = (place - (len(metrics) - 1) / 2) * 0.06
            x = [row.iteration + 1 + shift for row in have]
            y = [row.metrics[metric]["value"] for row in have]
            low = [row.metrics[metric]["value"] - row.metrics[metric]["low"] for row in have]
            high = [row.metrics[metric]["high"] - row.metrics[metric]["value"] for row in have]
            axis.errorbar(
                x, y, yerr=[low, high], label=metric, color=COLOURS[place % len(COLOURS)],
                marker=MARKERS[place % len(MARKERS)], markersize=5, elinewidth=1, capsize=2,
            )  # fmt: skip
        policies = {row.iteration + 1: _policy(row) for row in own}
        places = _chosen(sorted(policies))
        axis.set_xticks(places, [policies[place] for place in places])
        axis.set_title(plain(label))
        percent_axis(axis)
    for axis in axes[len(sets) :]:
        axis.set_visible(False)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=min(6, len(labels)))
    numbers = [
        (row.problem_set, row.policy, name, value["value"], value["low"], value["high"])
        for row in rows
        for name, value in row.metrics.items()
    ]
    caption = "Bars are 95 % bootstrap intervals over problems; differences to the base, paired, are in the table."
    names = ("set", "policy", "metric", "value", "low", "high")
    return picture(figure, "gains", "avg@n and pass@k by iteration", caption, names, numbers)


@styled
def funnel(ledgers: Mapping[int, Mapping[str, Any]]) -> Picture | None:
    """Trajectories left after each step of the filter, by iteration."""
    if not ledgers:
        return None
    steps = [row["step"] for row in next(iter(ledgers.values()))["ledger"]]
    drawn = {iteration: ledgers[iteration] for iteration in _chosen(list(ledgers))}
    figure, (axis,) = panels(1, 1, height=max(2.6, 0.24 * len(steps) * (len(drawn) + 1)))
    height = 0.8 / len(drawn)
    for place, (iteration, ledger) in enumerate(drawn.items()):
        left = [row["trajectories"] for row in ledger["ledger"]]
        y = [step + place * height - 0.4 + height / 2 for step in range(len(left))]
        colour = COLOURS[iteration % len(COLOURS)]
        axis.barh(
            y, [max(value, 0.7) for value in left], height=height * 0.9, color=colour, label=f"iteration {iteration}"
        )
        if len(drawn) <= 5:
            for where, row in zip(y, ledger["ledger"], strict=True):
                text = f" {row['trajectories']:,} ({row['problems']:,} problems)"
                axis.text(max(row["trajectories"], 0.7), where, text, va="center", fontsize=7.5, color=INK)
    most = max(row["trajectories"] for ledger in ledgers.values() for row in ledger["ledger"])
    axis.set_xscale("log")
    axis.set_xlim(0.7, 0.7 * max(2.0, most / 0.7) ** 1.35)  # room for the numbers beside the longest bar
    axis.set_yticks(range(len(steps)), steps)
    axis.invert_yaxis()
    axis.grid(axis="y", visible=False)
    axis.set_xlabel("trajectories left (log scale)")
    figure.legend(loc="outside upper left", ncols=min(4, len(drawn)))
    numbers = [
        (iteration, row["step"], row["trajectories"], row["problems"])
        for iteration, ledger in ledgers.items()
        for row in ledger["ledger"]
    ]
    caption = "From everything recorded (top) to the expert set (bottom)." + _left_out(ledgers)
    columns = ("iteration", "step", "trajectories", "problems")
    return picture(figure, "filter", "The filter's ledger", caption, columns, numbers)


@styled
def success_rates(rates: Mapping[int, Sequence[float]], threshold: float) -> Picture | None:
    """Problems by success rate over the whole RL phase, with the band of hard problems marked."""
    rates = {iteration: own for iteration, own in rates.items() if own}
    if not rates:
        return None
    import numpy as np

    edges = np.linspace(0, 1, 21)
    counted: dict[int, tuple[list[int], int]] = {}
    numbers: list[tuple[Any, ...]] = []
    for iteration, own in rates.items():
        values = np.asarray(own)
        found, unsolved = np.histogram(values[values > 0], bins=edges)[0], int((values == 0).sum())
        counted[iteration] = [int(count) for count in found], unsolved
        numbers.append((iteration, "never solved", "", unsolved))
        numbers += [(iteration, f"{edges[i]:.2f}", f"{edges[i + 1]:.2f}", int(n)) for i, n in enumerate(found)]
    drawn = _chosen(list(rates))
    columns = min(3, len(drawn))
    figure, axes = panels(-(-len(drawn) // columns), columns, height=2.4, sharey=True)
    for axis, iteration in zip(axes, drawn, strict=False):
        counts, unsolved = counted[iteration]
        hard = [bool(right <= threshold + 1e-9) for right in edges[1:]]
        axis.axvspan(0, threshold, color=COLOURS[4], alpha=0.18, linewidth=0)
        axis.bar(edges[:-1], counts, width=0.05, align="edge", color=[COLOURS[1] if h else COLOURS[0] for h in hard],
                 edgecolor="white", linewidth=0.6)  # fmt: skip
        axis.bar(-0.06, unsolved, width=0.05, align="edge", color=MUTED, edgecolor="white", linewidth=0.6)
        axis.set_title(f"iteration {iteration}")
        axis.set_xlabel("success rate (grey: never solved)")
        percent_axis(axis, "x")
    for axis in axes[len(drawn) :]:
        axis.set_visible(False)
    axes[0].set_ylabel("problems")
    caption = f"Shaded: hard problems, solved but in less than {threshold:.0%} of all attempts of the RL phase."
    caption += _left_out(rates)
    names = ("iteration", "rate_from", "rate_to", "problems")
    return picture(figure, "success-rates", "How often training problems were solved", caption, names, numbers)


@styled
def seconds(rows: Sequence[Mapping[str, Any]]) -> Picture | None:
    """Seconds of each stage, stacked by iteration."""
    if not rows:
        return None
    there = sorted({row["iteration"] for row in rows})
    iterations = _chosen(there)
    figure, (axis,) = panels(1, 1, height=0.8 + 0.42 * len(iterations))
    total = max(sum(row["seconds"] for row in rows if row["iteration"] == iteration) for iteration in iterations)
    for stage, colour in STAGE_COLOURS.items():
        left, width = [], []
        ink = INK if stage == "evaluate" else "white"
        for iteration in iterations:
            own = {row["stage"]: row["seconds"] for row in rows if row["iteration"] == iteration}
            left.append(sum(own.get(name, 0.0) for name in list(STAGE_COLOURS)[: list(STAGE_COLOURS).index(stage)]))
            width.append(own.get(stage, 0.0))
        axis.barh(range(len(iterations)), width, left=left, color=colour, label=stage, height=0.62, edgecolor="white")
        for place, (start, length) in enumerate(zip(left, width, strict=True)):
            if length > 0.07 * total:
                axis.text(start + length / 2, place, f"{length:,.0f}", ha="center", va="center", color=ink, fontsize=8)
    axis.set_yticks(range(len(iterations)), ["base" if i < 0 else f"iteration {i}" for i in iterations])
    axis.invert_yaxis()
    axis.grid(axis="y", visible=False)
    axis.set_xlabel("seconds")
    figure.legend(loc="outside upper left", ncols=5)
    numbers = [(row["iteration"], row["stage"], row["seconds"]) for row in rows]
    caption = (
        "As each stage took in the attempt that finished it. An evaluation may have run beside the next exploration."
    ) + _left_out(there)
    return picture(figure, "seconds", "Seconds by stage", caption, ("iteration", "stage", "seconds"), numbers)


def _chosen(iterations: Sequence[int]) -> list[int]:
    """All of them, or as many as a figure can show: the first, the last, and evenly between."""
    if len(iterations) <= MOST_DRAWN:
        return list(iterations)
    return [iterations[round(place * (len(iterations) - 1) / (MOST_DRAWN - 1))] for place in range(MOST_DRAWN)]


def _left_out(iterations: Collection[int]) -> str:
    """What a caption says where not all are drawn."""
    if len(iterations) <= MOST_DRAWN:
        return ""
    return f" Of {len(iterations)} iterations {MOST_DRAWN} are drawn; the CSV file has all."


def _policy(row: EvaluationRow) -> str:
    return rf"$\theta_{{{row.iteration + 1}}}$" if row.policy.startswith("theta_") else row.policy
