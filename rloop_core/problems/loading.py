"""Load a problem set: read, clean, deduplicate, drop contradictions, and account for every row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from rloop_core.errors import ProblemsError
from rloop_core.problems import sources
from rloop_core.problems.registry import PROCEDURAL_PREFIX, REGISTRY, HubSource, closest
from rloop_core.problems.rows import GOLD_COLUMNS, PROBLEM_COLUMNS, problem_and_gold
from rloop_core.problems.types import Problem, ProblemSet, problem_id
from rloop_core.verifier.fast import number
from rloop_core.verifier.normalise import normalise


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


def load_problems(source: ProblemSourceLike) -> ProblemSet:
    """The problems of a source, in its order, each normalised text once.

    Problems that appear with golds that differ are dropped altogether, since no copy can be trusted; the ledger counts
    them and everything else that is not in the result.

    Raises:
        ProblemsError: Unknown name, missing or malformed input, unreachable hub, or nothing left; one line that names
            the field or row and the fix.
    """
    name = source.name or source.source
    rows, problem_columns, gold_columns = _rows(source)
    kept: dict[str, Problem] = {}
    copies: Counter[str] = Counter()
    conflicting: set[str] = set()
    ledger = Counter(rows_read=0, malformed_skipped=0)
    for place, row in rows:
        ledger["rows_read"] += 1
        try:
            if isinstance(row, sources.MalformedLineError):
                raise row
            text, gold = problem_and_gold(row, problem_columns, gold_columns)
        except ValueError as error:
            if source.skip_malformed:
                ledger["malformed_skipped"] += 1
                continue
            fix = "correct it, or set skip_malformed: true to skip and count such rows"
            raise ProblemsError(f"{place} {error}", field=source.source, fix=fix) from None
        identity = problem_id(text)
        copies[identity] += 1
        first = kept.setdefault(identity, Problem(identity, text, gold, name))
        if first.gold != gold and _gold_key(first.gold) != _gold_key(gold):
            conflicting.add(identity)
    consistent = [problem for problem in kept.values() if problem.id not in conflicting]
    problems = tuple(consistent[: source.limit])
    ledger["conflicting_golds_dropped"] = sum(copies[identity] for identity in conflicting)
    ledger["conflicting_problems"] = len(conflicting)
    ledger["duplicates_dropped"] = sum(copies[problem.id] - 1 for problem in consistent)
    ledger["beyond_limit"] = len(consistent) - len(problems)
    ledger["kept"] = len(problems)
    if not problems:
        counts = ", ".join(f"{key} {count}" for key, count in ledger.items() if count) or "no rows"
        raise ProblemsError(
            f"the problem set is empty ({counts})",
            field=source.source,
            fix="give a source with at least one problem",
        )
    return ProblemSet(name, problems, dict(ledger))


def _rows(source: ProblemSourceLike) -> tuple[Iterator[sources.Row], tuple[str, ...], tuple[str, ...]]:
    """The rows of whatever the source names, and the columns to look in."""
    where = source.source
    if where.startswith(PROCEDURAL_PREFIX):
        task = where.removeprefix(PROCEDURAL_PREFIX)
        rows = sources.procedural_rows(task, size=source.size, seed=source.seed, params=source.params)
        return rows, PROBLEM_COLUMNS, GOLD_COLUMNS
    if where in REGISTRY:
        return _hub(REGISTRY[where], source)
    if sources.looks_like_file(where):
        return sources.file_rows(where), PROBLEM_COLUMNS, GOLD_COLUMNS
    if sources.looks_like_hub_id(where):
        return _hub(HubSource(where, "train"), source)
    names = [*sorted(REGISTRY), f"{PROCEDURAL_PREFIX}<task>"]
    raise ProblemsError(f"unknown problem set {where!r}", field="source", fix=closest(where, names))


def _hub(hub: HubSource, source: ProblemSourceLike) -> tuple[Iterator[sources.Row], tuple[str, ...], tuple[str, ...]]:
    params: Mapping[str, Any] = source.params
    rows = sources.hub_rows(hub, split=source.split, revision=source.revision, config=params.get("config"))
    return rows, hub.problem_columns, hub.gold_columns


def _gold_key(gold: str) -> str:
    """What two golds share when they are the same answer written differently (025 and 25, 1/2 and 0.5)."""
    plain = normalise(gold)
    value = number(plain)
    return f"{value.number}{'%' * value.percent}" if value else "".join(plain.split())
