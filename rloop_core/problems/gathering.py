"""From rows to problems: equal texts once, contradictions out, and a record of both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rloop_core.problems.sources import Rows
from rloop_core.problems.types import Problem, ProblemSet, Repeated, Variant, problem_id
from rloop_core.verifier.compare.exact import compare
from rloop_core.verifier.read.normalise import normalise


class _Seen:
    """What the rows say of one problem."""

    __slots__ = ("conflicting", "first", "golds")

    def __init__(self, first: Problem) -> None:
        self.first = first
        self.golds: dict[str, tuple[int, str]] = {}
        self.conflicting = False

    @property
    def copies(self) -> int:
        return sum(rows for rows, _ in self.golds.values())

    def repeated(self) -> Repeated:
        variants = tuple(Variant(gold, rows, first) for gold, (rows, first) in self.golds.items())
        return Repeated(self.first.id, self.first.problem, variants)


class Gathering:
    """Problems as their rows come in.

    Memory grows with the different texts, not with the rows: DAPO's 1.8 million rows hold 18 thousand texts.

    Attributes:
        name: The set's name.
        malformed: Rows that were skipped; counted by the reader.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.malformed = 0
        self._rows = 0
        self._seen: dict[str, _Seen] = {}
        # Normalising and hashing a text costs more than all else, and a hundred copies have one text.
        self._of_text: dict[str, _Seen] = {}

    def add(self, place: str, text: str, gold: str) -> None:
        """Take in one row."""
        self._rows += 1
        seen = self._of_text.get(text)
        if seen is None:
            identity = problem_id(text)
            seen = self._seen.get(identity)
            if seen is None:
                seen = self._seen[identity] = _Seen(Problem(identity, text, gold, self.name))
            self._of_text[text] = seen
        rows, first = seen.golds.get(gold, (0, place))
        seen.golds[gold] = (rows + 1, first)
        if rows == 0 and gold != seen.first.gold and not _same(gold, seen.first.gold):
            seen.conflicting = True

    def problem_set(self, limit: int | None, source: Rows) -> ProblemSet:
        """The first `limit` problems that no row contradicts, and the account of all rows."""
        consistent = [seen for seen in self._seen.values() if not seen.conflicting]
        conflicting = [seen for seen in self._seen.values() if seen.conflicting]
        problems = tuple(seen.first for seen in consistent[:limit])
        ledger = {
            "rows_read": self._rows + self.malformed,
            "malformed_skipped": self.malformed,
            "conflicting_golds_dropped": sum(seen.copies for seen in conflicting),
            "conflicting_problems": len(conflicting),
            "duplicates_dropped": sum(seen.copies - 1 for seen in consistent),
            "beyond_limit": len(consistent) - len(problems),
            "kept": len(problems),
        }
        problem_set = ProblemSet(
            self.name,
            problems,
            ledger,
            (*source.warnings, *_conflict_warning(conflicting)),
            tuple(seen.repeated() for seen in conflicting),
            tuple(seen.repeated() for seen in consistent if seen.copies > 1),
        )
        if source.digest is None or ledger["beyond_limit"] or problem_set.digest == source.digest:
            return problem_set
        changed = f"the problems or golds of {self.name} differ from those known at its revision"
        return replace(problem_set, warnings=(*problem_set.warnings, changed))


def _conflict_warning(conflicting: Sequence[_Seen]) -> tuple[str, ...]:
    if not conflicting:
        return ()
    first = conflicting[0]
    golds = " and ".join(repr(gold[:40]) for gold in list(first.golds)[:2])
    what = "problem is" if len(conflicting) == 1 else "problems are"
    return (
        f"{len(conflicting):,} {what} left out, since the golds contradict each other; first {first.first.id}: {golds}",
    )


def _same(gold: str, other: str) -> bool:
    """Whether two golds are one answer written differently (025 and 25, 1/2 and 0.5), without asking a math engine."""
    return compare(normalise(gold), normalise(other)) is True
