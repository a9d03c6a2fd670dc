"""Figures of bars and intervals: differences, the filter's ledger, success rates."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from rloop_core.results.frame import Results
from rloop_core.results.intervals import Effect
from rloop_core.results.plotting import (
    COLOURS,
    GRID,
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
from rloop_core.results.tables import Row, ends_of

_LINE = 0.2
"""Height of a line of a forest plot, inches."""
MOST_DRAWN = 12
"""Most iterations that a figure shows side by side. The numbers beside it are of all of them."""


@styled
def differences(results: Results, rows: Mapping[str, Sequence[Row]], name: str, title: str) -> Picture | None:
    """Draw differences with their intervals, a panel a set, a group of lines an arm."""
    labels = [label for label in results.sets if rows.get(label)]
    if not labels:
        return None
    most = max(sum(len(row.cells) + 1 for row in rows[label]) for label in labels)
    figure, axes = panels(len(labels), width=4.2 * max(2, len(labels)), height=0.6 + _LINE * most, sharex=True)
    cells: list[tuple[Any, ...]] = []
    for axis, label in zip(axes, labels, strict=True):
        y, left = 0.0, axis.get_yaxis_transform()
        for row in rows[label]:
            axis.text(0, y, plain(row.name), transform=left, fontsize=8.5, fontweight="bold", va="center",
                      bbox={"facecolor": "white", "edgecolor": "none", "pad": 1})  # fmt: skip
            for index, (metric, effect) in enumerate(row.cells.items()):
                y += 1
                _interval(axis, y, effect, COLOURS[index % len(COLOURS)], MARKERS[index % len(MARKERS)])
                axis.text(-0.01, y, metric, transform=left, fontsize=8, va="center", ha="right", color=INK)
                cells.append((label, row.name, metric, *ends_of(effect), *effect.by_seed))
            y += 1.4
        axis.axvline(0, color=INK, linewidth=0.9)
        axis.spines["left"].set_visible(False)
        axis.set_ylim(y - 0.6, -0.8)
        axis.set_yticks([])
        axis.set_title(plain(label))
        axis.set_xlabel("percentage points")
        axis.xaxis.set_major_formatter(lambda x, _: _points(x))
        axis.grid(visible=False, axis="y")
        axis.grid(color=GRID, axis="x")
    caption = (
        "Differences of the last policies, paired over problems and seeds, with 95 % intervals over both. Small "
        "circles: single seeds. Right of zero: the first named is better."
    )
    seeds = max(map(len, cells)) - 6
    columns = ("set", "difference", "metric", "value", "low", "high", *(f"seed_{i + 1}" for i in range(seeds)))
    padded = [(*cell, *[None] * (len(columns) - len(cell))) for cell in cells]
    return picture(figure, name, title, caption, columns, padded)


def _interval(axis: Any, y: float, effect: Effect, colour: str, marker: str) -> None:
    """Draw an interval with its mean, and each seed's own value."""
    if effect.low is not None:
        axis.plot([effect.low, effect.high], [y, y], color=colour, linewidth=2, solid_capstyle="butt")
    axis.plot([effect.value], [y], marker=marker, color=colour, markersize=6, linestyle="none")
    if len(effect.by_seed) > 1:
        axis.plot(effect.by_seed, [y] * len(effect.by_seed), linestyle="none", marker="o", markersize=3.2,
                  markerfacecolor="none", markeredgecolor=MUTED, markeredgewidth=0.8)  # fmt: skip


def _points(value: float) -> str:
    rounded = round(100 * value)
    return f"{rounded:+d}".replace("-", "\N{MINUS SIGN}") if rounded else "0"


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
        axis.barh(
            y, width, height=height * 0.9, color=COLOURS[iteration % len(COLOURS)], label=f"iteration {iteration}"
        )
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
    return picture(figure, "filter", "Trajectories left after each step of the filter", caption, columns, numbers)


@styled
def success_rates(rates: Mapping[int, Sequence[float]], threshold: float) -> Picture | None:
    """Draw problems by success rate over the whole RL phase, with the band of hard problems marked."""
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
