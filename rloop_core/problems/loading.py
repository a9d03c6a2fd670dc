"""Load a problem set: read, deduplicate, drop contradictions, account for every row; and check its golds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from rloop_core.errors import ProblemsError
from rloop_core.problems import registry, sources
from rloop_core.problems.hub import hub_rows
from rloop_core.problems.procedural import procedural_rows
from rloop_core.problems.types import Conflict, Problem, ProblemSet, exact_id, problem_id
from rloop_core.verifier.compare.answers import compare
from rloop_core.verifier.limits import unreadable
from rloop_core.verifier.read.normalise import normalise
from rloop_core.verifier.types import Verdict
from rloop_core.verifier.verifier import Verifier

if TYPE_CHECKING:
    from rloop_core.config.evaluation import ProblemSource

_ROWS_PER_CALL = 1024  # of `on_progress`
MOST_ROWS = 20_000_000
"""Limit of a source: a file of a few KB can hold any number of equal rows."""


def load_problems(
    source: ProblemSource, on_progress: Callable[[int, int | None], None] = lambda done, total: None
) -> ProblemSet:
    """Load the problems of a source, in its order, each normalised text once.

    Problems that appear with different golds are dropped, since none can be trusted; the set counts them and
    all other rows that it leaves out.

    Args:
        source: Source of the problems.
        on_progress: Called from time to time with the rows read so far and, if it is known, their total.

    Raises:
        ProblemsError: Unknown name, missing or malformed input, unreachable hub, or no problem left; one line that
            names the field or row and the fix.
    """
    rows, problem_columns, gold_columns = _rows(source)
    collected = _Collected(source.name or source.source)
    for done, (place, row) in enumerate(rows.rows):
        if done >= MOST_ROWS:
            fix = "give a source of fewer rows; limit counts what is kept"
            raise ProblemsError(f"has more than {MOST_ROWS:,} rows", field=source.source, fix=fix)
        if done % _ROWS_PER_CALL == 0:
            on_progress(done, rows.total)
        try:
            if isinstance(row, sources.MalformedLineError):
                raise row
            found = sources.problem_and_gold(row, problem_columns, gold_columns)
        except ValueError as error:
            if source.skip_malformed:
                collected.malformed += 1
                continue
            fix = "correct it, or set skip_malformed: true to skip and count such rows"
            raise ProblemsError(f"{place} {error}", field=source.source, fix=fix) from None
        collected.add(place, found)
    problem_set = collected.problem_set(source.limit, rows)
    if not problem_set.problems:
        counts = ", ".join(f"{key} {count}" for key, count in problem_set.ledger.items() if count) or "no rows"
        fix = "give a source with at least one problem"
        if collected.malformed:
            fix = "leave skip_malformed out: the error names the first bad row"
        raise ProblemsError(f"the problem set is empty ({counts})", field=source.source, fix=fix)
    return problem_set


def _rows(source: ProblemSource) -> tuple[sources.Rows, tuple[str, ...], tuple[str, ...]]:
    """Return the rows of a source, its problem columns, and its gold columns.

    Raises:
        ProblemsError: The source is neither a known name, nor a generator, a file or a hub id.
    """
    name = source.source
    columns = registry.PROBLEM_COLUMNS, registry.GOLD_COLUMNS
    if name.startswith(registry.PROCEDURAL_PREFIX):
        task = name.removeprefix(registry.PROCEDURAL_PREFIX)
        return procedural_rows(task, size=source.size, seed=source.seed, params=source.params), *columns
    if name not in registry.REGISTRY and sources.looks_like_file(name):
        return sources.file_rows(name, columns[0] + columns[1]), *columns
    if name in registry.REGISTRY or sources.looks_like_hub_id(name):
        hub = registry.hub_source(name)
        rows = hub_rows(hub, split=source.split, revision=source.revision, config=source.params.get("config"))
        return rows, hub.problem_columns, hub.gold_columns
    names = [*sorted(registry.REGISTRY), f"{registry.PROCEDURAL_PREFIX}<task>"]
    raise ProblemsError(f"unknown problem set {name!r}", field="source", fix=registry.closest(name, names))


@dataclass(slots=True)
class _Candidate:
    """A problem, the golds that its rows give with the place of the first, and the number of its rows."""

    first: Problem
    golds: dict[str, str] = field(default_factory=dict)
    rows: int = 0
    conflicting: bool = False


class _Collected:
    """Collects rows into problems.

    Memory grows with the different texts, not with the rows: DAPO's 1.8 million rows hold 18 thousand texts.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.malformed = 0
        """Number of skipped rows, counted by the caller."""
        self._rows = self._without_system = self._ambiguous = 0
        self._first_ambiguous = ""
        self._by_id: dict[str, _Candidate] = {}
        # Normalising and hashing a text is the largest cost, and DAPO has a hundred copies of each.
        self._by_text: dict[str, _Candidate] = {}

    def add(self, place: str, found: sources.Found) -> None:
        """Add one row."""
        text, gold, system, others = found
        self._rows += 1
        self._without_system += system
        if other := next((each for each in others if not _is_same_answer(each, gold)), None):
            self._ambiguous += 1
            self._first_ambiguous = self._first_ambiguous or f"{place}: {other[:40]!r} and {gold[:40]!r}"
        candidate = self._by_text.get(text)
        if candidate is None:
            identity = problem_id(text)
            same = self._by_id.get(identity)
            if same and exact_id(same.first.problem) != exact_id(text):
                identity = exact_id(text)
            candidate = self._by_id.setdefault(identity, _Candidate(Problem(identity, text, gold, self.name)))
            self._by_text[text] = candidate
        candidate.rows += 1
        if gold not in candidate.golds:
            candidate.golds[gold] = place
            if gold != candidate.first.gold and not _is_same_answer(gold, candidate.first.gold):
                candidate.conflicting = True

    def problem_set(self, limit: int | None, source: sources.Rows) -> ProblemSet:
        """Return the first `limit` problems without contradictions, and the counts of all rows."""
        consistent = [candidate for candidate in self._by_id.values() if not candidate.conflicting]
        conflicting = [candidate for candidate in self._by_id.values() if candidate.conflicting]
        problems = tuple(candidate.first for candidate in consistent[:limit])
        ledger = {
            "rows_read": self._rows + self.malformed,
            "malformed_skipped": self.malformed,
            "conflicting_golds_dropped": sum(candidate.rows for candidate in conflicting),
            "conflicting_problems": len(conflicting),
            "duplicates_dropped": sum(candidate.rows - 1 for candidate in consistent),
            "beyond_limit": len(consistent) - len(problems),
            "kept": len(problems),
        }
        conflicts = tuple(Conflict(each.first.id, each.first.problem, each.golds) for each in conflicting)
        problem_set = ProblemSet(self.name, problems, ledger, (*source.warnings, *self._warnings(conflicts)), conflicts)
        if source.digest is None or ledger["beyond_limit"] or problem_set.digest == source.digest:
            return problem_set
        changed = f"the problems or golds of {self.name} differ from those known at its revision"
        return replace(problem_set, warnings=(*problem_set.warnings, changed))

    def _warnings(self, conflicts: Sequence[Conflict]) -> Iterator[str]:
        if conflicts:
            golds = " and ".join(repr(gold[:40]) for gold in list(conflicts[0].golds)[:2])
            what = "left out, since the golds contradict each other; first"
            yield f"{_counted(len(conflicts), 'problem')} {what} {conflicts[0].id}: {golds}"
        if self._without_system:
            what = "left out: prompt.template writes the instructions"
            yield f"{_counted(self._without_system, 'system message')} {what}"
        if self._ambiguous:
            rule = "in boxes or after ####, and the last is the gold (a column `answer` decides)"
            what = f"with several answers, {rule}; first {self._first_ambiguous}"
            yield f"{_counted(self._ambiguous, 'solution')} {what}"


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' * (count != 1)}"


def _is_same_answer(gold: str, other: str) -> bool:
    """Return True if two golds are one answer (025 and 25, 1/2 and 0.5), decided without the math engine."""
    return not (unreadable(gold) or unreadable(other)) and compare(normalise(gold), normalise(other)) is True


def self_check(problem_set: ProblemSet, verifier: Verifier) -> list[Problem]:
    """Return the problems whose boxed gold is not judged correct against itself: no policy could solve them."""
    judgements = verifier.judge_many([(f"\\boxed{{{problem.gold}}}", problem.gold, True) for problem in problem_set])
    pairs = zip(problem_set, judgements, strict=True)
    return [problem for problem, judgement in pairs if judgement.verdict is not Verdict.correct]
