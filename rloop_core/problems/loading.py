"""Load a problem set: read, clean, deduplicate, drop contradictions, and account for every row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from rloop_core.errors import ProblemsError
from rloop_core.problems import sources
from rloop_core.problems.gathering import Gathering
from rloop_core.problems.hub import hub_rows
from rloop_core.problems.procedural import procedural_rows
from rloop_core.problems.registry import PROCEDURAL_PREFIX, REGISTRY, HubSource, closest, hub_source
from rloop_core.problems.rows import GOLD_COLUMNS, PROBLEM_COLUMNS, problem_and_gold
from rloop_core.problems.types import ProblemSet

_TELL_EVERY = 1024
MOST_ROWS = 20_000_000
"""Of a source; a file of a few KB can hold any number of equal ones."""


class ProblemSourceLike(Protocol):
    """Where problems come from; `config.ProblemSource` is one."""

    @property
    def source(self) -> str:
        """A known name, a FILE, a hub id `owner/name`, or `reasoning_gym:<task>`."""

    @property
    def name(self) -> str | None:
        """Name for reports; the source where None."""

    @property
    def split(self) -> str | None:
        """Hub split; the data set's usual one where None."""

    @property
    def revision(self) -> str | None:
        """Hub revision."""

    @property
    def size(self) -> int | None:
        """Problems to generate."""

    @property
    def seed(self) -> int:
        """Seed of the generator."""

    @property
    def params(self) -> dict[str, Any]:
        """The generator's difficulty knobs; for hub data sets, `config` chooses the subset."""

    @property
    def limit(self) -> int | None:
        """Keep the first N problems after deduplication."""

    @property
    def skip_malformed(self) -> bool:
        """Skip and count rows that are not JSON or lack a field."""


def load_problems(
    source: ProblemSourceLike, tell: Callable[[int, int | None], None] = lambda done, total: None
) -> ProblemSet:
    """The problems of a source, in its order, each normalised text once.

    Problems that appear with golds that differ are dropped altogether, since no copy can be trusted; the ledger counts
    them and everything else that is not in the result.

    Args:
        source: Where the problems come from.
        tell: Called now and then with the rows read so far and, where it is known, their number.

    Raises:
        ProblemsError: Unknown name, missing or malformed input, unreachable hub, or nothing left; one line that names
            the field or row and the fix.
    """
    rows, problem_columns, gold_columns = _rows(source)
    gathering = Gathering(source.name or source.source)
    for done, (place, row) in enumerate(rows.rows):
        if done >= MOST_ROWS:
            fix = "give a source of fewer rows; limit counts what is kept"
            raise ProblemsError(f"has more than {MOST_ROWS:,} rows", field=source.source, fix=fix)
        if done % _TELL_EVERY == 0:
            tell(done, rows.total)
        try:
            if isinstance(row, sources.MalformedLineError):
                raise row
            text, gold = problem_and_gold(row, problem_columns, gold_columns)
        except ValueError as error:
            if source.skip_malformed:
                gathering.malformed += 1
                continue
            fix = "correct it, or set skip_malformed: true to skip and count such rows"
            raise ProblemsError(f"{place} {error}", field=source.source, fix=fix) from None
        gathering.add(place, text, gold)
    problem_set = gathering.problem_set(source.limit, rows)
    if not problem_set.problems:
        counts = ", ".join(f"{key} {count}" for key, count in problem_set.ledger.items() if count) or "no rows"
        raise ProblemsError(
            f"the problem set is empty ({counts})",
            field=source.source,
            fix="give a source with at least one problem",
        )
    return problem_set


def _rows(source: ProblemSourceLike) -> tuple[sources.Rows, tuple[str, ...], tuple[str, ...]]:
    """The rows of whatever the source names, and the columns to look in."""
    where = source.source
    if where.startswith(PROCEDURAL_PREFIX):
        task = where.removeprefix(PROCEDURAL_PREFIX)
        rows = procedural_rows(task, size=source.size, seed=source.seed, params=source.params)
        return rows, PROBLEM_COLUMNS, GOLD_COLUMNS
    hub = _hub(where)
    if hub is None:
        return sources.file_rows(where, (*PROBLEM_COLUMNS, *GOLD_COLUMNS)), PROBLEM_COLUMNS, GOLD_COLUMNS
    params: Mapping[str, Any] = source.params
    rows = hub_rows(hub, split=source.split, revision=source.revision, config=params.get("config"))
    return rows, hub.problem_columns, hub.gold_columns


def _hub(where: str) -> HubSource | None:
    """The hub data set that a source names; None for a file.

    Raises:
        ProblemsError: It is neither.
    """
    if where in REGISTRY:
        return REGISTRY[where]
    if sources.looks_like_file(where):
        return None
    if sources.looks_like_hub_id(where):
        return hub_source(where)
    names = [*sorted(REGISTRY), f"{PROCEDURAL_PREFIX}<task>"]
    raise ProblemsError(f"unknown problem set {where!r}", field="source", fix=closest(where, names))
