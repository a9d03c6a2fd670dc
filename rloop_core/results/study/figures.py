"""The study's figures: learning curves of the main arm and the reference, differences, and forgetting beside chance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

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
from rloop_core.results.study.curves import curves, step_curves
from rloop_core.results.study.findings import StudyFindings
from rloop_core.results.study.forgetting import PATHS, Forgetting, forgetting_table
from rloop_core.results.study.intervals import Effect
from rloop_core.results.study.record import StudyRecord
from rloop_core.results.tables import Row, ends_of

_LINE = 0.2
"""Height of a line of a forest plot, inches."""


def draw(findings: StudyFindings) -> dict[str, Picture]:
    """Draw every figure that there are numbers for; returns them by name."""
    record, table = findings.record, findings.table
    main, reference = (record.titles[arm] for arm in record.pair)
    pictures = (
        curves(record, findings.steps),
        step_curves(record, "training"),
        differences(record, table.differences, "differences", f"Against {reference}"),
        differences(record, table.ablations, "ablations", f"Ablations against {main}"),
        forgotten(record, findings.forgetting),
    )
    return {one.name: one for one in pictures if one}


@styled
def differences(record: StudyRecord, rows: Mapping[str, Sequence[Row]], name: str, title: str) -> Picture | None:
    """Draw differences with their intervals, a panel a set, a group of lines an arm."""
    labels = [label for label in record.sets if rows.get(label)]
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


@styled
def forgotten(record: StudyRecord, rows: Sequence[Forgetting]) -> Picture | None:
    """Draw mean forgetting of every arm and what chance alone would give, a panel a set and path."""
    if not rows:
        return None
    keys = list(dict.fromkeys((row.path, row.set) for row in rows))
    figure, axes = panels(len(keys), 2, height=0.7 + 0.34 * len(record.titles))
    colours = dict(zip(record.pair, COLOURS, strict=False))
    for axis, (path, label) in zip(axes, keys, strict=False):
        of_panel = [row for row in rows if (row.path, row.set) == (path, label)]
        for y, row in enumerate(of_panel):
            _interval(axis, y, row.observed, colours.get(row.arm, COLOURS[2]), "o")
            axis.plot([row.null.value], [y], linestyle="none", marker="D", markersize=6, markerfacecolor="white",
                      markeredgecolor=INK, label="by chance" if y == 0 else None)  # fmt: skip
        names = [plain(record.titles[row.arm]) for row in of_panel]
        axis.set_yticks(range(len(names)), names, fontsize=8.5, color=INK)
        axis.set_ylim(len(names) - 0.4, -0.6)
        axis.set_title(f"{plain(label)}: {path}")
        axis.set_xlabel("problems forgotten")
        percent_axis(axis, "x")
    handles, names = axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper right")
    caption = (
        "Share of problems that an earlier policy solves and a later one does not, with 95 % intervals over problems "
        "and seeds; small circles: single seeds. Diamonds: what it would be if both policies were one. "
        + " ".join(f"{name[0].upper()}{name[1:]}: {about}." for name, about in PATHS.items())
    )
    table = forgetting_table(record.titles, rows)
    return picture(figure, table.name, "Forgetting beside chance", caption, table.columns, table.rows)


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
