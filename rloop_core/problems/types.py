"""Problems, problem sets, and the normalised text that identifies a problem."""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property


def normalised_problem(text: str) -> str:
    """Return the text that identifies a problem: NFKC, case-folded, single spaces, stripped."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def problem_id(text: str) -> str:
    """Return the first 16 hex digits of the SHA-256 of the normalised problem text."""
    return hashlib.sha256(normalised_problem(text).encode("utf-8", errors="replace")).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem text with its gold answer.

    Attributes:
        id: Hash of the normalised text; equal problems from different sources share it.
        problem: The text of the source, without a prompt template.
        gold: The gold answer as text, with leading zeros and LaTeX.
        source: Name of the problem set it came from.
    """

    id: str
    problem: str
    gold: str
    source: str


@dataclass(frozen=True, slots=True)
class Variant:
    """A gold answer that a source gives to a problem, the number of rows with it, and the place of the first row."""

    gold: str
    rows: int
    first: str


@dataclass(frozen=True, slots=True)
class Repeated:
    """A problem that a source holds more than once.

    Attributes:
        id: The problem's id.
        problem: The text in its first row.
        variants: The different golds, in the order of appearance; one when all rows agree.
    """

    id: str
    problem: str
    variants: tuple[Variant, ...]


@dataclass(frozen=True)
class ProblemSet:
    """Problems in the order of their source, each id once.

    Attributes:
        name: Name for reports.
        problems: The problems kept.
        ledger: Counts that account for all rows. `rows_read` is the sum of `kept`, `duplicates_dropped`,
            `conflicting_golds_dropped`, `malformed_skipped` and `beyond_limit`.
        warnings: Warnings for the user, one sentence each.
        conflicts: Problems dropped because their golds contradict each other.
        duplicates: Problems that the source repeats; empty for a set read from a store, which keeps only their number.
    """

    name: str
    problems: tuple[Problem, ...]
    ledger: dict[str, int]
    warnings: tuple[str, ...] = ()
    conflicts: tuple[Repeated, ...] = ()
    duplicates: tuple[Repeated, ...] = field(default=(), compare=False)

    @cached_property
    def digest(self) -> str:
        """SHA-256 over ids and golds in order, for fingerprints."""
        digest = hashlib.sha256()
        for problem in self.problems:
            digest.update(f"{problem.id}\x1f{problem.gold}\x1e".encode("utf-8", errors="replace"))
        return digest.hexdigest()

    def __len__(self) -> int:
        return len(self.problems)

    def __iter__(self) -> Iterator[Problem]:
        return iter(self.problems)
