"""Which picture of the comparison stands for which figure of the paper, and what it takes where one is missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rloop_core.results.plotting import Picture

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
class PaperFigure:
    """One figure of the paper.

    Attributes:
        name: "Figure 2".
        shows: What it shows there.
        pictures: What stands for it here: each a title and its pictures' names, by problem set where there are several.
        needs: What it takes; empty where it is there.
    """

    name: str
    shows: str
    pictures: list[tuple[str, dict[str, str]]]
    needs: str


def paper_figures(overall: Sequence[Picture], by_set: Mapping[str, Sequence[Picture]]) -> list[PaperFigure]:
    """The paper's figures in its order, each with those of these pictures that stand for it.

    Args:
        overall: Pictures over all sets.
        by_set: Pictures of each set, by its label.
    """
    found = []
    for name, shows, kinds, needs in _PAPER:
        own = [(kind, _of_kind(kind, overall, by_set)) for kind in kinds]
        pictures = [one for _, one in own if one]
        found.append(PaperFigure(name, shows, pictures, "" if own[0][1] else needs))
    return found


def _of_kind(
    kind: str, overall: Sequence[Picture], by_set: Mapping[str, Sequence[Picture]]
) -> tuple[str, dict[str, str]] | None:
    """A title with the names of its pictures by label; the label is empty where a picture is over all sets."""
    whole = next((one for one in overall if one.name == kind), None)
    if whole:
        return whole.title, {"": whole.name}
    each = {label: one for label, own in by_set.items() for one in own if one.name.endswith(kind)}
    if not each:
        return None
    title = next(iter(each.values())).title.partition(" on ")[0]
    return title, {label: one.name for label, one in each.items()}
