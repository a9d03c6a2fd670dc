"""The study's intervals as figures: differences between the arms, and forgetting beside chance."""

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
from rloop_core.results.study.effects import Effect
from rloop_core.results.study.forgetting import PATHS, Forgetting
from rloop_core.results.study.record import StudyRecord
from rloop_core.results.study.table import Row

_ROW = 0.2  # inches a line of a forest plot takes


@styled
def differences(record: StudyRecord, rows: Mapping[str, Sequence[Row]], name: str, title: str) -> Picture | None:
    """Differences with their intervals, a panel a set, a group of lines an arm."""
    labels = [label for label in record.sets if rows.get(label)]
    if not labels:
        return None
    most = max(sum(len(row.cells) + 1 for row in rows[label]) for label in labels)
    figure, axes = panels(1, len(labels), width=4.2 * max(2, len(labels)), height=0.6 + _ROW * most, sharex=True)
    told: list[tuple[Any, ...]] = []
    for axis, label in zip(axes, labels, strict=True):
        y = 0.0
        for row in rows[label]:
            axis.text(0, y, plain(row.name), transform=axis.get_yaxis_transform(), fontsize=8.5, fontweight="bold",
                      va="center", bbox={"facecolor": "white", "edgecolor": "none", "pad": 1})  # fmt: skip
            for place, (metric, one) in enumerate(row.cells.items()):
                y += 1
                _line(axis, y, one, COLOURS[place % len(COLOURS)], MARKERS[place % len(MARKERS)])
                axis.text(-0.01, y, metric, transform=axis.get_yaxis_transform(), fontsize=8, va="center", ha="right",
                          color=INK)  # fmt: skip
                told.append((label, row.name, metric, one.value, one.low, one.high, *one.by_seed))
            y += 1.4
        axis.axvline(0, color=INK, linewidth=0.9)
        axis.spines["left"].set_visible(False)
        axis.set_ylim(y - 0.6, -0.8)
        axis.set_yticks([])
        axis.set_title(plain(label))
        axis.set_xlabel("percentage points")
        _points_axis(axis)
    caption = (
        "Differences of the last policies, paired over problems and seeds, with 95 % intervals over both. Small "
        "circles: single seeds. Right of zero: the first named is better."
    )
    most_seeds = max(len(one) - 6 for one in told)
    columns = ("set", "difference", "metric", "value", "low", "high", *(f"seed_{i + 1}" for i in range(most_seeds)))
    padded = [(*one, *[None] * (len(columns) - len(one))) for one in told]
    return picture(figure, name, title, caption, columns, padded)


@styled
def forgotten(record: StudyRecord, found: Sequence[Forgetting]) -> Picture | None:
    """Mean forgetting of every arm and what chance alone would give, a panel a set and path."""
    if not found:
        return None
    keys = list(dict.fromkeys((one.path, one.set) for one in found))
    wide = min(2, len(keys))
    tall = -(-len(keys) // wide)
    figure, axes = panels(tall, wide, height=0.7 + 0.34 * len(record.study.arms))
    rows: list[tuple[Any, ...]] = []
    for axis, key in zip(axes, keys, strict=False):
        own = [one for one in found if (one.path, one.set) == key]
        for y, one in enumerate(own):
            _line(
                axis,
                y,
                one.observed,
                {record.study.main: COLOURS[0], record.study.reference: COLOURS[1]}.get(one.arm, COLOURS[2]),
                "o",
            )
            axis.plot([one.null.value], [y], linestyle="none", marker="D", markersize=6, markerfacecolor="white",
                      markeredgecolor=INK, label="by chance" if y == 0 else None)  # fmt: skip
            rows.append((one.set, one.path, record.titles[one.arm], *_ends(one.observed), *_ends(one.null),
                         *_ends(one.excess)))  # fmt: skip
        axis.set_yticks(range(len(own)), [plain(record.titles[one.arm]) for one in own], fontsize=8.5, color=INK)
        axis.set_ylim(len(own) - 0.4, -0.6)
        axis.set_title(f"{plain(key[1])}: {key[0]}")
        axis.set_xlabel("problems forgotten")
        percent_axis(axis, "x")
    for axis in axes[len(keys) :]:
        axis.set_visible(False)
    handles, names = axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper right")
    caption = (
        "Share of problems that an earlier policy solves and a later one does not, with 95 % intervals over problems "
        "and seeds; small circles: single seeds. Diamonds: what it would be if both policies were one. "
        + " ".join(f"{name[0].upper()}{name[1:]}: {said}." for name, said in PATHS.items())
    )
    columns = ("set", "path", "arm", *(f"{name}{end}" for name in ("observed", "null", "excess")
                                       for end in ("", "_low", "_high")))  # fmt: skip
    return picture(figure, "forgetting", "Forgetting beside chance", caption, columns, rows)


def _ends(one: Effect) -> tuple[float, float | None, float | None]:
    return one.value, one.low, one.high


def _line(axis: Any, y: float, one: Effect, colour: str, marker: str) -> None:
    """An interval with its mean, and each seed's own value."""
    if one.low is not None:
        axis.plot([one.low, one.high], [y, y], color=colour, linewidth=2, solid_capstyle="butt")
    axis.plot([one.value], [y], marker=marker, color=colour, markersize=6, linestyle="none")
    if len(one.by_seed) > 1:
        axis.plot(one.by_seed, [y] * len(one.by_seed), linestyle="none", marker="o", markersize=3.2,
                  markerfacecolor="none", markeredgecolor=MUTED, markeredgewidth=0.8)  # fmt: skip


def _points(value: float) -> str:
    rounded = round(100 * value)
    return f"{rounded:+d}".replace("-", "\N{MINUS SIGN}") if rounded else "0"


def _points_axis(axis: Any) -> None:
    from matplotlib.ticker import FuncFormatter

    axis.xaxis.set_major_formatter(FuncFormatter(lambda x, _: _points(x)))
    axis.grid(visible=False, axis="y")
    axis.grid(color=GRID, axis="x")
