"""Which picture of the comparison stands for which figure of the paper, and what it takes where one is missing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rloop_core.report.canvas import Picture

_SNAPSHOTS = "evaluated snapshots (explore.snapshot_every, evaluate.snapshots=true)"
_PAPER = (
    ("Figure 1", "reward, accuracy and pass@k of vanilla RL", ("figure-1-overfitting", "figure-1-reward"),
     f"a vanilla-RL arm with {_SNAPSHOTS}"),
    ("Figure 2", "learning, forgetting and similarity between policies", ("transitions", "similarity"),
     "two evaluated policies of an arm"),
    ("Figure 3", "accuracy and pass@k by RLoop's iteration", ("figure-3-iterations",), "an evaluated theta"),
    ("Figure 4", "accuracy of both arms at the same RL steps", ("figure-4-curves",), "a problem set that both share"),
    ("Figure 5a", "differential forgetting", ("differential",), f"in both arms, {_SNAPSHOTS}"),
    ("Figure 5b", "similarity of solutions, both arms", ("similarity",), "two evaluated policies of an arm"),
    ("Figure 5c", "policy entropy, both arms", ("figure-5c-entropy",), "a finished exploration"),
    ("Figure 6", "gradient norm, both arms", ("figure-6-gradients",), "a finished exploration"),
)  # fmt: skip


@dataclass(frozen=True)
class PaperFigure:
    """One figure of the paper.

    Attributes:
        name: "Figure 2".
        shows: What it shows there.
        pictures: What stands for it here.
        needs: What it takes; empty where there is all of it.
    """

    name: str
    shows: str
    pictures: list[Picture]
    needs: str


def paper_figures(pictures: Sequence[Picture]) -> list[PaperFigure]:
    """The paper's figures in its order, each with those of these pictures that stand for it."""
    found = []
    for name, shows, ends, needs in _PAPER:
        own = [one for one in pictures if one.name.endswith(ends)]
        whole = any(one.name.endswith(ends[0]) for one in own)
        found.append(PaperFigure(name, shows, own, "" if whole else needs))
    return found
