"""The check before anything expensive: golds that verify against themselves."""

from __future__ import annotations

from collections.abc import Sequence

from rloop_core.problems.types import Problem, ProblemSet
from rloop_core.verifier.types import Verdict
from rloop_core.verifier.verifier import Verifier


def self_check(problem_set: ProblemSet, verifier: Verifier) -> list[Problem]:
    """The problems whose boxed gold is not judged correct against itself: no policy could ever solve them."""
    problems: Sequence[Problem] = problem_set.problems
    judged = verifier.judge_many([(f"\\boxed{{{problem.gold}}}", problem.gold, True) for problem in problems])
    return [problem for problem, one in zip(problems, judged, strict=True) if one.verdict is not Verdict.correct]
