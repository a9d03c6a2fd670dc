"""Draw matrices of policies against policies: learning, forgetting, their nulls, similarity (figures 2, 5a and 5b)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rloop_core.results.analysis.transitions import Matrix
from rloop_core.results.compare.transitions import ArmTransitions, SetTransitions
from rloop_core.results.plotting import INK, Picture, panels, percent_axis, picture, plain, styled
from rloop_core.results.study.arms import Checkpoint
from rloop_core.results.study.curves import LOOKS, THETA, marker_size, phases

_WRITTEN = 10  # up to so many checkpoints the cells are large enough for a number
_TICKS = 12
_PAIRS = {
    "words": "word pairs of two solutions to one problem; words are runs of anything but white space",
    "tokens": "token pairs of two solutions to one problem, as sampled, the end of sequence among them",
}


@styled
def transition_matrices(of_set: SetTransitions, name: str) -> Picture | None:
    """Draw learning, forgetting and their null, a row for each arm.

    Cells above the null's 97.5th percentile are marked.
    """
    if not of_set.arms:
        return None
    size = max(len(arm.checkpoints) for arm in of_set.arms)
    figure, axes = panels(3 * len(of_set.arms), 3, height=3.0 if size > _WRITTEN else 2.8)
    observed = [matrix for arm in of_set.arms for matrix in (arm.moved.learning, arm.moved.forgetting)]
    most = max(0.01, *(float(matrix[np.triu_indices_from(matrix, k=1)].max(initial=0.0)) for matrix in observed))
    mesh: Any = None
    rows: list[tuple[Any, ...]] = []
    for index, arm in enumerate(of_set.arms):
        moved, names = arm.moved, _names(arm.checkpoints)
        shown = (
            ("learning", moved.learning, moved.null.T, moved.null_high.T),
            ("forgetting", moved.forgetting, moved.null, moved.null_high),
        )
        for axis, (kind, found, _, high) in zip(axes[3 * index :], shown, strict=False):
            mesh = _heat(axis, found, names, vmin=0, vmax=most, cmap="Blues", marked=found > high)
            axis.set_title(f"{plain(arm.title)}: {kind}")
        _heat(axes[3 * index + 2], moved.null, names, vmin=0, vmax=most, cmap="Blues")
        axes[3 * index + 2].set_title(f"{plain(arm.title)}: by chance")
        axes[3 * index].set_ylabel("from")
        labels = [checkpoint.label for checkpoint in arm.checkpoints]
        rows += [
            (arm.title, kind, labels[i], labels[j], found[i, j], null[i, j], high[i, j], bool(found[i, j] > high[i, j]))
            for kind, found, null, high in shown
            for i, j in zip(*np.triu_indices(len(labels), k=1), strict=True)
        ]
    _colour_bar(figure, mesh, axes)
    title = f"Figure 2a, 2b. Learning and forgetting on {of_set.label}"
    caption = (
        f"Row: the earlier policy; column: the later one. A problem counts as solved by the rule "
        f"\N{LEFT DOUBLE QUOTATION MARK}{of_set.arms[0].moved.rule}\N{RIGHT DOUBLE QUOTATION MARK}. "
        "By chance: what the same samples would give if both were one policy. Dots mark cells above the 97.5th "
        "percentile of that, a cell at a time: chance alone marks up to one cell in forty."
    )
    columns = ("arm", "matrix", "from", "to", "share", "by_chance", "by_chance_97.5", "above")
    return picture(figure, name, title, caption, columns, rows)


@styled
def differential_matrix(of_set: SetTransitions, name: str) -> Picture | None:
    """Draw forgetting of the second arm minus forgetting of the first, RLoop, and the same by chance."""
    if of_set.blocks is None:
        return None
    blocks, (ours, theirs) = of_set.blocks, of_set.titles
    matrices = {"found": blocks.observed, "by chance": blocks.chance}
    most = max(0.01, *(float(np.nanmax(np.abs(matrix))) for matrix in matrices.values()))
    figure, axes = panels(2, width=7.2, height=2.9)
    names = [str(step) for step in blocks.steps]
    mesh: Any = None
    for axis, (kind, matrix) in zip(axes, matrices.items(), strict=True):
        mesh = _heat(axis, matrix, names, vmin=-most, vmax=most, cmap="RdBu", signed=True)
        for index in range(1, len(names)):
            if blocks.iterations[index] != blocks.iterations[index - 1]:
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
        (blocks.steps[i], blocks.steps[j], blocks.iterations[i] == blocks.iterations[j],
         *(matrix[i, j] for matrix in matrices.values()))
        for i, j in zip(*np.triu_indices(len(names), k=1), strict=True)
    ]  # fmt: skip
    title = f"Figure 5a. Differential forgetting on {of_set.label}: {theirs} minus {ours}"
    return picture(figure, name, title, caption, columns, rows)


@styled
def similarity_curves(of_set: SetTransitions, name: str) -> Picture | None:
    """Draw the similarity of a policy's own solutions over RL steps, and each arm's matrix."""
    arms = [(arm, look, arm.similarity) for arm, look in zip(of_set.arms, LOOKS, strict=False) if arm.similarity]
    if not arms:
        return None
    figure, axes = panels(1 + len(arms), height=2.9)
    most = max(float(np.nanmax(similarity.with_self_pairs)) for _, _, similarity in arms)
    rows: list[tuple[Any, ...]] = []
    mesh: Any = None
    for axis, (arm, look, similarity) in zip(axes[1:], arms, strict=True):
        every, distinct = similarity.with_self_pairs, similarity.without_self_pairs
        _diagonal(axes[0], arm, every.diagonal(), distinct.diagonal(), look)
        mesh = _heat(axis, every, _names(arm.checkpoints), vmin=0, vmax=max(most, 0.01), cmap="Blues", full=True)
        axis.set_title(f"{plain(arm.title)}: similarity")
        labels = [checkpoint.label for checkpoint in arm.checkpoints]
        rows += [
            (arm.title, labels[i], labels[j], every[i, j], None if np.isnan(distinct[i, j]) else distinct[i, j])
            for i, j in zip(*np.triu_indices(len(labels)), strict=True)
        ]
    axes[0].set_title("within a policy")
    axes[0].set_xlabel("RL step")
    axes[0].xaxis.get_major_locator().set_params(integer=True)
    percent_axis(axes[0])
    axes[0].legend(fontsize=8)
    _colour_bar(figure, mesh, axes[1:])
    drawn = of_set.similarity_problems < of_set.problems
    of = f"{of_set.similarity_problems} problems drawn from" if drawn else "all"
    problems = f"{of} {of_set.problems}{'' if drawn else ' problems'}"
    caption = (
        f"Mean Jaccard index of the sets of {_PAIRS[of_set.unit]}. Averaged over {problems}. Lower is more diverse. "
        "Left: over pairs of different solutions; dotted: with each solution against itself too, as in the paper and "
        "in the matrices' diagonals."
    )
    columns = ("arm", "from", "to", "similarity", "without_self_pairs")
    title = f"Figure 2c, 5b. Similarity of solutions on {of_set.label}"
    return picture(figure, name, title, caption, columns, rows)


def _diagonal(axis: Any, arm: ArmTransitions, every: Matrix, distinct: Matrix, look: dict[str, Any]) -> None:
    """Draw similarity within each policy, a line for each phase; policies after RFT are diamonds."""
    steps = np.array([checkpoint.step for checkpoint in arm.checkpoints])
    kinds = [checkpoint.kind for checkpoint in arm.checkpoints]
    title: str | None = plain(arm.title)
    for phase in phases(kinds, arm.restarts):
        axis.plot(steps[phase], distinct[phase], **look, markersize=marker_size(len(kinds)), label=title)
        axis.plot(steps[phase], every[phase], color=look["color"], linewidth=1, linestyle=(0, (1, 2)))
        title = None
    thetas = [index for index, kind in enumerate(kinds) if kind == "theta"]
    axis.plot(steps[thetas], distinct[thetas], color=look["color"], **THETA)


def _names(checkpoints: Sequence[Checkpoint]) -> list[str]:
    """Return short names for ticks: RL steps, and theta_i as a symbol."""
    return [
        rf"$\theta_{{{one.iteration + 1}}}$" if one.kind == "theta" else "base" if one.kind == "base" else str(one.step)
        for one in checkpoints
    ]


def _heat(
    axis: Any, matrix: Matrix, names: Sequence[str], *, vmin: float, vmax: float, cmap: str,
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
