"""Two arms' forgetting on one step axis (paper section 5.4, figure 5a): within an iteration, and across its ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rloop_core.errors import StageError
from rloop_core.results.analysis.transitions import Matrix, Transitions


@dataclass(frozen=True, slots=True, eq=False)
class Differential:
    """Forgetting of vanilla RL minus forgetting of RLoop; positive where RLoop forgets less.

    Attributes:
        matrix: Shape [T, T]; only cells i < j (an earlier against a later checkpoint) mean anything, the rest is nan.
        intra: Mean over cells within one iteration; None when there is none.
        inter: Mean over cells across iterations; None when there is none.
        vanilla: (intra, inter) means of vanilla RL's own forgetting.
        rloop: (intra, inter) means of RLoop's own forgetting.
    """

    matrix: Matrix
    intra: float | None
    inter: float | None
    vanilla: tuple[float | None, float | None]
    rloop: tuple[float | None, float | None]


def differential(vanilla: Transitions, rloop: Transitions, iterations: Sequence[int]) -> Differential:
    """Compare two arms checkpoint by checkpoint.

    Args:
        vanilla: Matrices of vanilla RL.
        rloop: Matrices of RLoop at the same RL steps.
        iterations: Which of RLoop's iterations each checkpoint belongs to, length T.

    Raises:
        StageError: The arms differ in checkpoints, problems or rule.
    """
    if vanilla.forgetting.shape != rloop.forgetting.shape or len(iterations) != len(rloop.forgetting):
        raise StageError(
            f"the arms have {len(vanilla.forgetting)} and {len(rloop.forgetting)} checkpoints", field="analysis"
        )
    if (vanilla.rule, vanilla.problems) != (rloop.rule, rloop.problems):
        raise StageError("the arms were evaluated on different problems or by different rules", field="analysis")
    later = np.triu(np.ones(rloop.forgetting.shape, dtype=bool), k=1)
    belongs = np.asarray(iterations)
    same = belongs[:, None] == belongs[None, :]
    difference = vanilla.forgetting - rloop.forgetting

    def means(matrix: Matrix) -> tuple[float | None, float | None]:
        within, across = matrix[later & same], matrix[later & ~same]
        return (float(within.mean()) if within.size else None, float(across.mean()) if across.size else None)

    intra, inter = means(difference)
    return Differential(
        np.where(later, difference, np.nan), intra, inter, means(vanilla.forgetting), means(rloop.forgetting)
    )
