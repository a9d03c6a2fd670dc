"""Draw matrices of policies against policies: learning, forgetting, their nulls, similarity (figures 2, 5a and 5b)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rloop_core.evaluation.metrics import Floats
from rloop_core.results.curves import LOOKS, THETA, marker_size, phases
from rloop_core.results.forgetting import Transitions
from rloop_core.results.frame import Policy, Results
from rloop_core.results.plotting import INK, Picture, panels, percent_axis, picture, plain, styled
from rloop_core.results.similarity import Similarity

_WRITTEN = 10  # up to so many checkpoints the cells are large enough for a number
_TICKS = 12


@styled
def transition_figure(label: str, moved: Mapping[str, Transitions], name: str) -> Picture | None:
    """Draw learning, forgetting and their null, a row an arm; cells above the null's 97.5th percentile are marked.

    Args:
        label: The problem set.
        moved: Each arm's matrices, by its title.
        name: Name of the figure.
    """
    if not moved:
        return None
    size = max(len(one.policies) for one in moved.values())
    figure, axes = panels(3 * len(moved), 3, height=3.0 if size > _WRITTEN else 2.8)
    observed = [matrix for one in moved.values() for matrix in (one.learning, one.forgetting)]
    most = max(0.01, *(float(matrix[np.triu_indices_from(matrix, k=1)].max(initial=0.0)) for matrix in observed))
    mesh: Any = None
    rows: list[tuple[Any, ...]] = []
    for index, (title, one) in enumerate(moved.items()):
        names, labels = _names(one.policies), [policy.label for policy in one.policies]
        shown = (
            ("learning", one.learning, one.null.T, one.null_high.T),
            ("forgetting", one.forgetting, one.null, one.null_high),
        )
        for axis, (kind, found, _, high) in zip(axes[3 * index :], shown, strict=False):
            mesh = _heat(axis, found, names, vmin=0, vmax=most, cmap="Blues", marked=found > high)
            axis.set_title(f"{plain(title)}: {kind}")
        _heat(axes[3 * index + 2], one.null, names, vmin=0, vmax=most, cmap="Blues")
        axes[3 * index + 2].set_title(f"{plain(title)}: by chance")
        axes[3 * index].set_ylabel("from")
        rows += [
            (title, kind, labels[i], labels[j], found[i, j], null[i, j], high[i, j], bool(found[i, j] > high[i, j]))
            for kind, found, null, high in shown
            for i, j in zip(*np.triu_indices(len(labels), k=1), strict=True)
        ]
    _colour_bar(figure, mesh, axes)
    title = f"Learning and forgetting on {label} (figures 2a and 2b)"
    caption = (
        f"Row: the earlier policy; column: the later one. A problem counts as solved by the rule "
        f"\N{LEFT DOUBLE QUOTATION MARK}{next(iter(moved.values())).rule}\N{RIGHT DOUBLE QUOTATION MARK}. "
        "By chance: what the same samples would give if both were one policy. Dots mark cells above the 97.5th "
        "percentile of that, a cell at a time: chance alone marks up to one cell in forty."
    )
    columns = ("arm", "matrix", "from", "to", "share", "by_chance", "by_chance_97.5", "above")
    return picture(figure, name, title, caption, columns, rows)


@styled
def differential_figure(label: str, moved: Mapping[str, Transitions], phase: int, name: str) -> Picture | None:
    """Draw the second arm's forgetting minus the first's between equal RL steps, and the same by chance.

    Args:
        label: The problem set.
        moved: Both arms' matrices, by title, RLoop's first.
        phase: RL steps of one of RLoop's iterations.
        name: Name of the figure.
    """
    places = [
        {policy.step: i for i, policy in enumerate(one.policies) if policy.kind in ("snapshot", "endpoint")}
        for one in moved.values()
    ]
    steps = sorted(set.intersection(*(set(own) for own in places))) if len(places) == 2 else []
    if len(steps) < 2:
        return None
    (ours, first), (theirs, second) = moved.items()
    mine, other = (np.ix_(*2 * ([own[step] for step in steps],)) for own in places)
    later = np.triu(np.ones((len(steps), len(steps)), dtype=bool), k=1)
    matrices = {
        "found": np.where(later, second.forgetting[other] - first.forgetting[mine], np.nan),
        "by chance": np.where(later, second.null[other] - first.null[mine], np.nan),
    }
    iterations = [(step - 1) // phase for step in steps]
    most = max(0.01, *(float(np.nanmax(np.abs(matrix))) for matrix in matrices.values()))
    figure, axes = panels(2, width=7.2, height=2.9)
    names = [str(step) for step in steps]
    mesh: Any = None
    for axis, (kind, matrix) in zip(axes, matrices.items(), strict=True):
        mesh = _heat(axis, matrix, names, vmin=-most, vmax=most, cmap="RdBu", signed=True)
        for index in range(1, len(names)):
            if iterations[index] != iterations[index - 1]:
                axis.axhline(index, color=INK, linewidth=1)
                axis.axvline(index, color=INK, linewidth=1)
        axis.set_title(kind)
        axis.set_xlabel("to RL step")
    axes[0].set_ylabel("from RL step")
    _colour_bar(figure, mesh, axes)
    caption = (
        f"Blue: {ours} forgets less between these two RL steps; red: more. Lines part {ours}'s iterations. Only "
        "policies within RL are compared, at the same RL step of both arms."
    )
    columns = ("from_rl_step", "to_rl_step", "same_iteration", f"{theirs} minus {ours}", "by_chance")
    rows = [
        (steps[i], steps[j], iterations[i] == iterations[j],
         *(matrix[i, j] for matrix in matrices.values()))
        for i, j in zip(*np.triu_indices(len(names), k=1), strict=True)
    ]  # fmt: skip
    title = f"Differential forgetting on {label}: {theirs} minus {ours} (figure 5a)"
    return picture(figure, name, title, caption, columns, rows)


@styled
def similarity_figure(results: Results, label: str, alike: Mapping[str, Similarity], name: str) -> Picture | None:
    """Draw similarity within each policy over RL steps, and between all policies of each arm.

    Args:
        results: The runs, of one seed.
        label: The problem set.
        alike: Each arm's similarity, by its short name.
        name: Name of the figure.
    """
    if not alike:
        return None
    figure, axes = panels(1 + len(alike), height=2.9)
    most = max(float(np.nanmax(one.with_self_pairs)) for one in alike.values())
    rows: list[tuple[Any, ...]] = []
    mesh: Any = None
    for axis, (arm, one) in zip(axes[1:], alike.items(), strict=True):
        every, distinct, title = one.with_self_pairs, one.without_self_pairs, results.titles[arm]
        policies, look = results.policies(label, arm), LOOKS[results.pair.index(arm)]
        _diagonal(axes[0], policies, every.diagonal(), distinct.diagonal(), look, title, results.restarts(arm))
        mesh = _heat(axis, every, _names(policies), vmin=0, vmax=max(most, 0.01), cmap="Blues", full=True)
        axis.set_title(f"{plain(title)}: similarity")
        labels = [policy.label for policy in policies]
        rows += [
            (title, labels[i], labels[j], every[i, j], None if np.isnan(distinct[i, j]) else distinct[i, j])
            for i, j in zip(*np.triu_indices(len(labels)), strict=True)
        ]
    axes[0].set_title("within a policy")
    axes[0].set_xlabel("RL step")
    axes[0].xaxis.get_major_locator().set_params(integer=True)
    percent_axis(axes[0])
    axes[0].legend(fontsize=8)
    _colour_bar(figure, mesh, axes[1:])
    drawn, of_all = max(one.problems for one in alike.values()), len(results.problems[label])
    problems = f"{drawn} problems drawn from {of_all}" if drawn < of_all else f"all {of_all} problems"
    caption = (
        "Mean Jaccard index of the sets of word pairs of two solutions to one problem; words are runs of anything but "
        f"white space. Averaged over {problems}. Lower is more diverse. "
        "Left: over pairs of different solutions; dotted: with each solution against itself too, as in the paper and "
        "in the matrices' diagonals."
    )
    columns = ("arm", "from", "to", "similarity", "without_self_pairs")
    title = f"Similarity of solutions on {label} (figures 2c and 5b)"
    return picture(figure, name, title, caption, columns, rows)


def _diagonal(
    axis: Any, policies: Sequence[Policy], every: Floats, distinct: Floats, look: Mapping[str, Any], title: str,
    restarts: bool,
) -> None:  # fmt: skip
    """Draw similarity within each policy, a line for each phase; policies after RFT are diamonds."""
    steps = np.array([policy.step for policy in policies])
    kinds = [policy.kind for policy in policies]
    label: str | None = plain(title)
    for phase in phases(kinds, restarts):
        axis.plot(steps[phase], distinct[phase], **look, markersize=marker_size(len(kinds)), label=label)
        axis.plot(steps[phase], every[phase], color=look["color"], linewidth=1, linestyle=(0, (1, 2)))
        label = None
    thetas = [index for index, kind in enumerate(kinds) if kind == "theta"]
    axis.plot(steps[thetas], distinct[thetas], color=look["color"], **THETA)


def _names(policies: Sequence[Policy]) -> list[str]:
    """Return short names for ticks: RL steps, and theta_i as a symbol."""
    return [
        rf"$\theta_{{{one.label.removeprefix('theta_')}}}$" if one.kind == "theta" else one.label.removeprefix("step ")
        for one in policies
    ]


def _heat(
    axis: Any, matrix: Floats, names: Sequence[str], *, vmin: float, vmax: float, cmap: str,
    marked: Any = None, full: bool = False, signed: bool = False,
) -> Any:  # fmt: skip
    """Draw a matrix as coloured cells: those above the diagonal, or all with `full`."""
    size = len(matrix)
    shown = np.ones((size, size), dtype=bool) if full else np.triu(np.ones((size, size), dtype=bool), k=1)
    cells = np.ma.masked_where(~shown | np.isnan(matrix), matrix)
    # Pixels in the vector figure: thousands of cells as shapes would make the page megabytes large.
    mesh = axis.pcolormesh(cells, vmin=vmin, vmax=vmax, cmap=cmap, edgecolors="white", linewidth=0.4, rasterized=True)
    axis.set_aspect("equal")
    axis.invert_yaxis()
    axis.grid(visible=False)
    ticks = range(0, size, -(-size // _TICKS))
    axis.set_xticks([index + 0.5 for index in ticks], [names[index] for index in ticks], fontsize=7.5, rotation=90)
    axis.set_yticks([index + 0.5 for index in ticks], [names[index] for index in ticks], fontsize=7.5)
    if size <= _WRITTEN:
        for i, j in zip(*np.nonzero(shown & ~np.isnan(matrix)), strict=True):
            share = (matrix[i, j] - vmin) / (vmax - vmin)
            dark = abs(share - 0.5) > 0.35 if signed else share > 0.55
            percent = round(100 * float(matrix[i, j]))
            text = f"{percent:+d}".replace("-", "\N{MINUS SIGN}") if signed and percent else f"{percent}"
            axis.text(j + 0.5, i + 0.5, text, ha="center", va="center", fontsize=6.5, color="white" if dark else INK)
    if marked is not None:
        above = np.argwhere(shown & marked)
        corner = (0.84, 0.18) if size <= _WRITTEN else (0.5, 0.5)
        axis.plot(above[:, 1] + corner[0], above[:, 0] + corner[1], linestyle="none", marker="o",
                  markersize=3 if size <= 2 * _WRITTEN else 0.9, color=LOOKS[1]["color"])  # fmt: skip
    return mesh


def _colour_bar(figure: Any, mesh: Any, axes: Sequence[Any]) -> None:
    bar = figure.colorbar(mesh, ax=list(axes), shrink=0.85, pad=0.02)
    bar.outline.set_visible(False)
    percent_axis(bar.ax)
