"""What became of each problem: "solved at base, lost at step 120, regained by theta_2"."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from rloop_core.errors import StageError
from rloop_core.evaluation.outcomes import Outcomes, check_same_problems
from rloop_core.results.analysis.solved import SolvedRule


@dataclass(frozen=True, slots=True)
class History:
    """One problem over the checkpoints.

    Attributes:
        problem_id: The problem.
        solved: Whether each checkpoint solved it.
        correct: Correct samples at each checkpoint.
        kind: `always`, `never`, `learnt` (and kept), `lost` (solved once, not at the end), `regained`.
        told: The history in words.
    """

    problem_id: str
    solved: tuple[bool, ...]
    correct: tuple[int, ...]
    kind: str
    told: str


def histories(checkpoints: Sequence[Outcomes], labels: Sequence[str], rule: SolvedRule | None = None) -> list[History]:
    """One history a problem, in the order of the problems.

    Args:
        checkpoints: Outcomes in the order of training.
        labels: What to call each checkpoint, such as "step 40" or "theta_2".
        rule: What counts as solved.

    Raises:
        StageError: Different problems, or not one label a checkpoint.
    """
    chosen = rule or SolvedRule()
    if len(labels) != len(checkpoints) or not checkpoints:
        raise StageError(f"{len(checkpoints)} checkpoints, {len(labels)} labels", field="analysis")
    check_same_problems(*(one.problem_ids for one in checkpoints))
    table = [chosen(one.n, one.c).tolist() for one in checkpoints]
    counts = [one.c.tolist() for one in checkpoints]
    found = []
    for place, problem_id in enumerate(checkpoints[0].problem_ids):
        solved = tuple(row[place] for row in table)
        correct = tuple(row[place] for row in counts)
        found.append(History(problem_id, solved, correct, _kind(solved), _told(solved, labels)))
    return found


def _kind(solved: Sequence[bool]) -> str:
    if all(solved):
        return "always"
    if not any(solved):
        return "never"
    if not solved[-1]:
        return "lost"
    lost = any(before and not after for before, after in pairwise(solved))
    return "regained" if lost else "learnt"


def _told(solved: Sequence[bool], labels: Sequence[str]) -> str:
    if not any(solved):
        return "never solved"
    first = solved.index(True)
    turns = [place for place in range(first + 1, len(solved)) if solved[place] != solved[place - 1]]
    said = [f"{'regained' if solved[place] else 'lost'} at {labels[place]}" for place in turns]
    return ", ".join([f"solved at {labels[first]}", *said])
