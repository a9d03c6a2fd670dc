"""Load a problem set: read, deduplicate, drop contradictions, and account for every row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rloop_core.errors import ProblemsError
from rloop_core.problems import registry, sources
from rloop_core.problems.environments import environment_rows
from rloop_core.problems.types import Conflict, Problem, ProblemSet, exact_id, problem_id
from rloop_core.verifier.compare.answers import compare
from rloop_core.verifier.limits import unreadable
from rloop_core.verifier.read.normalise import normalise

if TYPE_CHECKING:
    from rloop_core.config.evaluation import ProblemSource

_ROWS_PER_CALL = 1024  # of `on_progress`
MOST_ROWS = 20_000_000
"""Limit of a source: a file of a few KB can hold any number of equal rows."""


def load_problems(
    source: ProblemSource, on_progress: Callable[[int, int | None], None] = lambda done, total: None
) -> ProblemSet:
    """Load the problems of a source, in its order, each normalised text once.

    Problems that appear with different golds are dropped, since none can be trusted; the set counts them and all other
    rows that it leaves out. `on_progress` is called from time to time with the rows read so far and, if it is known,
    their total. Raises ProblemsError, which names the field or row and the fix, for an unknown name, an unreachable
    hub, missing or malformed input, or if no problem is left.
    """
    rows, problem_columns, gold_columns = _rows(source)
    # Memory grows with the different texts, not with the rows: DAPO's 1.8 million rows hold 18 thousand texts.
    candidates: dict[str, _Candidate] = {}
    # Normalising and hashing a text is the largest cost, and DAPO has a hundred copies of each.
    by_text: dict[str, _Candidate] = {}
    label, math = source.label, source.reward_name == "math"
    read = malformed = 0
    for place, row in rows.rows:
        if read >= MOST_ROWS:
            fix = "give a source of fewer rows; limit counts what is kept"
            raise ProblemsError(f"has more than {MOST_ROWS:,} rows", field=source.source, fix=fix)
        if read % _ROWS_PER_CALL == 0:
            on_progress(read, rows.total)
        read += 1
        try:
            text, gold, columns = sources.problem_and_gold(row, problem_columns, gold_columns, math)
        except ValueError as error:
            if source.skip_malformed:
                malformed += 1
                continue
            fix = "correct it, or set skip_malformed: true to skip and count such rows"
            raise ProblemsError(f"{place} {error}", field=source.source, fix=fix) from None
        if text not in by_text:
            identity = problem_id(text)
            same = candidates.get(identity)
            if same and exact_id(same.first.problem) != exact_id(text):
                identity = exact_id(text)
            by_text[text] = candidates.setdefault(identity, _Candidate(Problem(identity, text, gold, label, columns)))
        by_text[text].add(gold, place, math)
    consistent = [candidate for candidate in candidates.values() if not candidate.conflicting]
    conflicting = [candidate for candidate in candidates.values() if candidate.conflicting]
    problems = tuple(candidate.first for candidate in consistent[: source.limit])
    ledger = {
        "rows_read": read,
        "malformed_skipped": malformed,
        "conflicting_golds_dropped": sum(candidate.rows for candidate in conflicting),
        "conflicting_problems": len(conflicting),
        "duplicates_dropped": sum(candidate.rows - 1 for candidate in consistent),
        "beyond_limit": len(consistent) - len(problems),
        "kept": len(problems),
    }
    if not problems:
        counts = ", ".join(f"{key} {count}" for key, count in ledger.items() if count) or "no rows"
        fix = "leave skip_malformed out: the error names the first bad row" if malformed else "give one with problems"
        raise ProblemsError(f"the problem set is empty ({counts})", field=source.source, fix=fix)
    conflicts = tuple(Conflict(each.first.id, each.first.problem, each.golds) for each in conflicting)
    warnings = list(rows.warnings)
    if conflicts:
        golds = " and ".join(repr(gold[:40]) for gold in list(conflicts[0].golds)[:2])
        what = f"{len(conflicts):,} problem{'s' * (len(conflicts) > 1)} left out, since the golds contradict each other"
        warnings.append(f"{what}; first {conflicts[0].id}: {golds}")
    return ProblemSet(label, problems, ledger, tuple(warnings), conflicts)


def _rows(source: ProblemSource) -> tuple[sources.Rows, tuple[str, ...], tuple[str, ...]]:
    """Return the rows of a source, its problem and its gold columns; raise ProblemsError for an unknown name."""
    name = source.source
    is_file = name not in registry.REGISTRY and sources.looks_like_file(name)
    hub = registry.HubSource(name, "") if is_file else registry.hub_source(name)
    problem_columns = (source.problem_column,) if source.problem_column else hub.problem_columns
    gold_columns = (source.gold_column,) if source.gold_column else hub.gold_columns
    if source.generator == "verifiers":
        rows = environment_rows(name.partition(":")[2], size=source.size, params=source.params)
    elif source.generator:
        task = name.removeprefix(registry.PROCEDURAL_PREFIX)
        rows = sources.procedural_rows(task, size=source.size, seed=source.seed, params=source.params)
    elif is_file:
        rows = sources.file_rows(name, problem_columns + gold_columns if source.reward_name == "math" else ())
    elif name in registry.REGISTRY or sources.looks_like_hub_id(name):
        rows = sources.hub_rows(hub, split=source.split, revision=source.revision, config=source.params.get("config"))
    else:
        names = [*sorted(registry.REGISTRY), f"{registry.PROCEDURAL_PREFIX}<task>"]
        raise ProblemsError(f"unknown problem set {name!r}", field="source", fix=registry.closest(name, names))
    return rows, problem_columns, gold_columns


@dataclass(slots=True)
class _Candidate:
    """A problem, the golds that its rows give with the place of the first, and the number of its rows."""

    first: Problem
    golds: dict[str, str] = field(default_factory=dict)
    rows: int = 0
    conflicting: bool = False

    def add(self, gold: str, place: str, math: bool) -> None:
        """Add one row. Different golds contradict each other where the verifier compares with them (`math`)."""
        self.rows += 1
        if math and gold not in self.golds:
            self.golds[gold] = place
            self.conflicting |= gold != self.first.gold and not _is_same_answer(gold, self.first.gold)


def _is_same_answer(gold: str, other: str) -> bool:
    """Return True if two golds are one answer (025 and 25, 1/2 and 0.5), decided without the math engine."""
    return not (unreadable(gold) or unreadable(other)) and compare(normalise(gold), normalise(other)) is True
