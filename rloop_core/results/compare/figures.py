"""Draw every figure of a comparison, and say which of them stands for which figure of the paper."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from rloop_core.results.compare.comparison import Comparison
from rloop_core.results.compare.curves import by_iteration, overfitting
from rloop_core.results.compare.matrices import differential_matrix, similarity_curves, transition_matrices
from rloop_core.results.compare.table import stored_rows
from rloop_core.results.plotting import Picture
from rloop_core.results.report.figures import funnel
from rloop_core.results.study.curves import curves, step_curves
from rloop_core.results.study.record import StudyRecord

_SNAPSHOTS = "evaluated snapshots (explore.snapshot_every, evaluate.snapshots=true)"
_PAPER = (
    ("Figure 1", "reward, accuracy and pass@k of vanilla RL", ("figure-1-overfitting", "figure-1-reward"),
     f"a vanilla-RL arm with {_SNAPSHOTS}"),
    ("Figure 2", "learning, forgetting and similarity between policies",
     ("figure-2-transitions", "figure-5b-similarity"), "two evaluated policies of an arm"),
    ("Figure 3", "accuracy and pass@k by RLoop's iteration", ("figure-3-iterations",), "an evaluated theta"),
    ("Figure 4", "accuracy of both arms at the same RL steps", ("figure-4-curves",),
     "a problem set on which both are evaluated"),
    ("Figure 5a", "differential forgetting", ("figure-5a-differential",), f"in both arms, {_SNAPSHOTS}"),
    ("Figure 5b", "similarity of solutions, both arms", ("figure-5b-similarity",), "two evaluated policies of an arm"),
    ("Figure 5c", "policy entropy, both arms", ("figure-5c-entropy",), "a finished exploration"),
    ("Figure 6", "gradient norm, both arms", ("figure-6-gradients",), "a finished exploration"),
)  # fmt: skip


@dataclass(frozen=True)
class Figures:
    """Pictures over all sets, of each set by its label, and of each expert set's filter."""

    overall: list[Picture] = field(default_factory=list)
    by_set: dict[str, list[Picture]] = field(default_factory=dict)
    experts: list[Picture] = field(default_factory=list)

    @property
    def every(self) -> list[Picture]:
        """All of them, in the page's order."""
        return [*self.overall, *(one for of_set in self.by_set.values() for one in of_set), *self.experts]


def draw(comparison: Comparison) -> Figures:
    """Draw every figure that there are numbers for."""
    record, steps = comparison.record, stored_rows(comparison.record)
    overall = (
        overfitting(record, steps),
        step_curves(record, "figure-1-reward"),
        by_iteration(record, steps),
        figure_4(record),
        step_curves(record, "figure-5c-entropy"),
        step_curves(record, "figure-6-gradients"),
    )
    by_set = {}
    for place, of_set in enumerate(comparison.transitions):
        pictures = (
            transition_matrices(of_set, f"set-{place:02d}-figure-2-transitions"),
            differential_matrix(of_set, f"set-{place:02d}-figure-5a-differential"),
            similarity_curves(of_set, f"set-{place:02d}-figure-5b-similarity"),
        )
        by_set[of_set.label] = [picture for picture in pictures if picture]
    experts = [
        replace(picture, name=f"arm-{place:02d}-filter", title=f"{arm.title}: {picture.title}")
        for place, (arm, ledgers) in enumerate(zip(comparison.arms, comparison.ledgers, strict=True))
        if (picture := funnel(ledgers))
    ]
    return Figures([picture for picture in overall if picture], by_set, experts)


def figure_4(record: StudyRecord) -> Picture | None:
    """Draw accuracy and pass@k of both arms over RL steps."""
    title = "Figure 4. Accuracy and pass@k over RL steps, both arms"
    return curves(record, stored_rows(record), "figure-4-curves", title)


def paper_figures(figures: Figures) -> list[dict[str, Any]]:
    """Return the paper's figures in its order, each with our pictures of the same.

    Returns:
        For each figure `name`, what it `shows` in the paper, `pictures` (titles, each with its pictures' names by
        problem set), and what it `needs`: empty unless the first picture is missing.
    """
    rows: list[dict[str, Any]] = []
    for name, shows, kinds, needs in _PAPER:
        pictures = [_of_kind(kind, figures) for kind in kinds]
        needs = "" if pictures[0] else needs
        rows.append({"name": name, "shows": shows, "pictures": [one for one in pictures if one], "needs": needs})
    return rows


def _of_kind(kind: str, figures: Figures) -> tuple[str, dict[str, str]] | None:
    """Return a title with the names of its pictures by label; the label is empty for a picture over all sets."""
    for picture in figures.overall:
        if picture.name == kind:
            return picture.title, {"": picture.name}
    of_sets = {label: one for label, pictures in figures.by_set.items() for one in pictures if one.name.endswith(kind)}
    if not of_sets:
        return None
    title = next(iter(of_sets.values())).title.partition(" on ")[0]
    return title, {label: picture.name for label, picture in of_sets.items()}
