"""Learning and forgetting between checkpoints (paper section 3.1, figure 2), and what chance alone would give.

With samples, "solved" is a random event: two draws from the *same* policy already differ. The null of a cell is the
distribution of that cell if both checkpoints were one policy. Given that a problem had t correct samples among the
n_i + n_j of both, every split of them is then equally likely, so the number that fell to checkpoint i is
hypergeometric: exact, without an estimate of the success rate. A cell sums independent problems, so its distribution is
Poisson-binomial, computed here by convolution.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, permutations

import numpy as np
import numpy.typing as npt

from rloop_core.errors import ConfigError, StageError
from rloop_core.evaluation.bootstrap import CONFIDENCE
from rloop_core.evaluation.metrics import Counts, checked_counts
from rloop_core.evaluation.outcomes import Outcomes, check_same_problems

Matrix = npt.NDArray[np.float64]
_RULE = re.compile(r"any|majority|at-least-([1-9]\d*)")


@dataclass(frozen=True, slots=True)
class SolvedRule:
    """The rule for solved: `any` (at least one sample is correct), `at-least-M`, or `majority` (over half are).

    The paper (section 3.1) samples 32 solutions a problem and does not say how many of them must be right. `any` fits
    its pass@32. The choice moves every rate, so a matrix always says which rule it used.

    Raises:
        ConfigError: The name is another.
    """

    name: str = "any"

    def __post_init__(self) -> None:
        if not _RULE.fullmatch(self.name):
            raise ConfigError(
                f"unknown rule {self.name!r}", field="solved", fix="use any, majority or at-least-M, such as at-least-3"
            )

    def needed(self, samples: npt.ArrayLike) -> Counts:
        """Return how many of so many samples must be correct; the shape of `samples`."""
        total = np.asarray(samples, dtype=np.int64)
        if self.name == "majority":
            return total // 2 + 1
        return np.full_like(total, 1 if self.name == "any" else int(self.name.removeprefix("at-least-")))

    def __call__(self, n: npt.ArrayLike, c: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        """Return True for problems that c correct of n samples solve; n and c are broadcast.

        Raises:
            StageError: The counts are impossible.
        """
        total, correct = checked_counts(n, c)
        return np.asarray(correct >= self.needed(total))


@dataclass(frozen=True, slots=True, eq=False)
class Transitions:
    """Matrices of shape [T, T] over T checkpoints of one policy on the same problems; row i is the earlier checkpoint.

    Attributes:
        rule: The rule for solved.
        learning: Share of problems that j solves and i does not.
        forgetting: Share of problems that i solves and j does not: the transpose of `learning`.
        null: Expected share in either matrix if i and j were the same policy.
        null_high: 97.5th percentile of that share. A cell above it is more than chance.
    """

    rule: str
    learning: Matrix
    forgetting: Matrix
    null: Matrix
    null_high: Matrix


def transitions(checkpoints: Sequence[Outcomes], rule: SolvedRule) -> Transitions:
    """Return the matrices of checkpoints that were evaluated on the same problems.

    Raises:
        StageError: There is no checkpoint, or the problems differ.
    """
    if not checkpoints:
        raise StageError("there is no evaluated checkpoint to compare", field="analysis")
    check_same_problems(*(checkpoint.problem_ids for checkpoint in checkpoints))
    n, c = (np.stack([getattr(checkpoint, name) for checkpoint in checkpoints]) for name in ("n", "c"))
    solved = rule(n, c).astype(np.float64)
    steps, problems = solved.shape
    forgetting = solved @ (1.0 - solved).T / problems
    null, high = np.zeros((2, steps, steps))
    for i, j in permutations(range(steps), 2):
        chances = lost_by_chance(n[i], n[j], c[i] + c[j], rule)
        null[i, j] = chances.mean()
        high[i, j] = _percentile(chances, (1 + CONFIDENCE) / 2) / problems
    return Transitions(rule.name, forgetting.T.copy(), forgetting, null, high)


def lost_by_chance(first: Counts, second: Counts, correct: Counts, rule: SolvedRule) -> Matrix:
    """Return the chance that a problem is solved by the first draw and not by the second, both from one policy.

    Args:
        first: Samples in the first draw, shape [P].
        second: Samples in the second draw, shape [P].
        correct: Correct samples in both together, shape [P].
        rule: The rule for solved.

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
    """Return the smallest count that holds at least `mass` of a sum of independent yes-no events with these chances."""
    distribution = np.ones(1)
    for chance in chances[chances > 0]:
        distribution = np.convolve(distribution, (1 - chance, chance))
    # Rounding leaves the total a hair below 1, and the cut must not step over an event that is all but certain.
    return int(np.searchsorted(np.cumsum(distribution), mass * (1 - 1e-12)))


@dataclass(frozen=True, slots=True)
class History:
    """One problem over the checkpoints.

    Attributes:
        problem_id: The problem.
        solved: True for each checkpoint that solved it.
        correct: Correct samples at each checkpoint.
        kind: `always`, `never`, `learnt` (and kept), `lost` (solved once, not at the end), `regained`.
        told: "solved at base, lost at step 120, regained at theta_2".
    """

    problem_id: str
    solved: tuple[bool, ...]
    correct: tuple[int, ...]
    kind: str
    told: str


def histories(checkpoints: Sequence[Outcomes], labels: Sequence[str], rule: SolvedRule) -> list[History]:
    """Return the history of each problem, in the order of the problems.

    Args:
        checkpoints: Outcomes in the order of training.
        labels: Name of each checkpoint, such as "step 40" or "theta_2".
        rule: The rule for solved.

    Raises:
        StageError: The problems differ, or there is not one label a checkpoint.
    """
    if len(labels) != len(checkpoints) or not checkpoints:
        raise StageError(f"{len(checkpoints)} checkpoints, {len(labels)} labels", field="analysis")
    ids = checkpoints[0].problem_ids
    check_same_problems(*(checkpoint.problem_ids for checkpoint in checkpoints))
    solved = zip(*(rule(checkpoint.n, checkpoint.c).tolist() for checkpoint in checkpoints), strict=True)
    correct = zip(*(checkpoint.c.tolist() for checkpoint in checkpoints), strict=True)
    rows = zip(ids, solved, correct, strict=True)
    return [History(problem, row, counts, _kind(row), _told(row, labels)) for problem, row, counts in rows]


def _kind(solved: Sequence[bool]) -> str:
    if all(solved):
        return "always"
    if not any(solved):
        return "never"
    if not solved[-1]:
        return "lost"
    return "regained" if any(before and not after for before, after in pairwise(solved)) else "learnt"


def _told(solved: Sequence[bool], labels: Sequence[str]) -> str:
    if not any(solved):
        return "never solved"
    first = solved.index(True)
    changes = [index for index in range(first + 1, len(solved)) if solved[index] != solved[index - 1]]
    phrases = [f"{'regained' if solved[index] else 'lost'} at {labels[index]}" for index in changes]
    return ", ".join([f"solved at {labels[first]}", *phrases])
