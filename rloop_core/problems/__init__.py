"""Problem sets: hub data sets, files and generators as deduplicated, accounted-for problems with gold answers."""

from rloop_core.problems.loading import load_problems, self_check
from rloop_core.problems.registry import REGISTRY
from rloop_core.problems.templates import TEMPLATES, render
from rloop_core.problems.types import Problem, ProblemSet, exact_id, problem_id

__all__ = [
    "REGISTRY",
    "TEMPLATES",
    "Problem",
    "ProblemSet",
    "exact_id",
    "load_problems",
    "problem_id",
    "render",
    "self_check",
]
