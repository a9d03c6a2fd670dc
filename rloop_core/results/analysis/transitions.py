"""Learning and forgetting between checkpoints (paper section 3.1, figure 2), beside what chance alone would give.

With samples, "solved" is a random event: two draws from the *same* policy already differ. The null of a cell is the
distribution of that cell if both checkpoints were one policy. Given that a problem had t correct samples among the
n_i + n_j of both, every split of them is then equally likely, so the number that fell to checkpoint i is
hypergeometric: exact, without an estimate of the success rate. A cell sums independent problems, so its distribution is
Poisson-binomial, computed here by convolution.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rloop_core.errors import StageError
from rloop_core.evaluation.bootstrap import CONFIDENCE
from rloop_core.evaluation.metrics import Counts, checked_counts
from rloop_core.evaluation.outcomes import Outcomes, check_same_problems
from rloop_core.results.analysis.solved import SolvedRule

Matrix = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Transitions:
    """Matrices over T checkpoints of one policy's history on the same problems; row i is the earlier checkpoint.

    Attributes:
        rule: What counted as solved.
        problems: Number of problems.
        learning: Shape [T, T]; share of problems that j solves and i does not.
        forgetting: Shape [T, T]; share of problems that i solves and j does not: the transpose of `learning`.
        null: Shape [T, T]; expected share in either matrix if i and j were the same policy.
        null_high: Shape [T, T]; 97.5th percentile of that share. A cell above it is more than chance.
    """

    rule: str
    problems: int
    learning: Matrix
    forgetting: Matrix
    null: Matrix
    null_high: Matrix


def transitions(checkpoints: Sequence[Outcomes], rule: SolvedRule | None = None) -> Transitions:
    """The matrices of checkpoints that were evaluated on the same problems.

    Raises:
        StageError: No checkpoint, or different problems.
    """
    if not checkpoints:
        raise StageError("there is no evaluated checkpoint to compare", field="analysis")
    check_same_problems(*(one.problem_ids for one in checkpoints))
    return transitions_of_counts(
        np.stack([one.n for one in checkpoints]), np.stack([one.c for one in checkpoints]), rule
    )


def transitions_of_counts(n: npt.ArrayLike, c: npt.ArrayLike, rule: SolvedRule | None = None) -> Transitions:
    """The matrices from counts: n samples and c correct ones, shape [T, P] each.

    Raises:
        StageError: Impossible counts, or no problems.
    """
    chosen = rule or SolvedRule()
    total, correct = checked_counts(n, c)
    if total.ndim != 2 or not total.size:
        raise StageError("transitions need counts of shape [checkpoints, problems]", field="analysis")
    solved = chosen(total, correct)
    steps, problems = solved.shape
    counted = solved.astype(np.float64)
    forgetting = counted @ (1.0 - counted).T / problems
    null, high = np.zeros((steps, steps)), np.zeros((steps, steps))
    for i in range(steps):
        for j in range(i + 1, steps):
            lost = lost_by_chance(total[i], total[j], correct[i] + correct[j], chosen)
            found = lost_by_chance(total[j], total[i], correct[i] + correct[j], chosen)
            for row, column, chances in ((i, j, lost), (j, i, found)):
                null[row, column] = chances.mean()
                high[row, column] = _percentile(chances, (1 + CONFIDENCE) / 2) / problems
    return Transitions(chosen.name, problems, forgetting.T.copy(), forgetting, null, high)


def lost_by_chance(first: Counts, second: Counts, correct: Counts, rule: SolvedRule) -> Matrix:
    """Chance that a problem is solved by the first draw and not by the second, both from one policy.

    Args:
        first: Samples in the first draw, shape [P].
        second: Samples in the second draw, shape [P].
        correct: Correct samples in both together, shape [P].
        rule: What counts as solved.

    Returns:
        Shape [P].
    """
    from scipy.stats import hypergeom

    took = np.arange(int(first.max()) + 1)[:, None]
    chance = hypergeom.pmf(took, first + second, correct, first)
    left = correct - took
    possible = (took <= first) & (left >= 0) & (left <= second)
    lost = (took >= rule.needed(first)) & (left < rule.needed(second))
    return np.asarray(np.where(possible & lost, chance, 0.0).sum(axis=0), dtype=np.float64)


def _percentile(chances: Matrix, mass: float) -> int:
    """The smallest count that holds at least `mass` of a sum of independent yes-no events with these chances."""
    distribution = np.ones(1)
    for chance in chances[chances > 0]:
        distribution = np.convolve(distribution, (1 - chance, chance))
    # Rounding leaves the total a hair below 1, and the cut must not step over an event that is all but certain.
    return int(np.searchsorted(np.cumsum(distribution), mass * (1 - 1e-12)))
