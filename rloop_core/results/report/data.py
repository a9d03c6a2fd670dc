"""What a run was trained and evaluated on: problem sets, what their loaders left out, and what they share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rloop_core.problems.decontamination import Match
from rloop_core.results.plotting import Table
from rloop_core.results.report.reading import RunRecord

_SHOWN_PAIRS = 100
_COUNTS = (
    ("rows_read", "rows read"),
    ("duplicates_dropped", "duplicates"),
    ("conflicting_golds_dropped", "contradictory"),
    ("malformed_skipped", "malformed"),
    ("beyond_limit", "beyond limit"),
    ("contaminated_dropped", "contaminated"),
)


def set_table(run: RunRecord) -> Table:
    """One row a problem set: its use, how many problems it has, and where the other rows of its source went."""
    columns = ("set", "use", "problems", *(name for name, _ in _COUNTS), "golds_refused", "digest")
    rows = [
        (one.label, one.use, one.problems, *(one.ledger.get(name, 0) for name, _ in _COUNTS), len(one.golds_refused),
         one.digest)
        for one in (run.data.sets if run.data else ())
    ]  # fmt: skip
    return Table("problem-sets", columns, tuple(rows))


def ledger_table(run: RunRecord) -> Table:
    """One row a pair of problems that share an n-gram or are equal, contaminated ones first."""
    columns = ("kind", "training_id", "evaluation_set", "evaluation_id", "containment", "shared_ngrams", "same_numbers",
               "phrase", "training", "evaluation")  # fmt: skip
    rows = tuple(tuple(getattr(match, name) for name in columns) for match in _ordered(run))
    return Table("decontamination", columns, rows)


def data_section(run: RunRecord) -> dict[str, Any] | None:
    """The page's section on data; None for a run whose problems preflight has not recorded."""
    if run.data is None:
        return None
    # A column of zeros says nothing: of what was left out, only what there is.
    used = [(name, title) for name, title in _COUNTS if any(one.ledger.get(name) for one in run.data.sets)]
    found = run.data.decontamination
    matches = _ordered(run)
    return {
        "columns": [title for _, title in used],
        "refused": any(one.golds_refused for one in run.data.sets),
        "sets": [
            {
                "label": one.label,
                "use": one.use,
                "problems": one.problems,
                "counts": [one.ledger.get(name, 0) for name, _ in used],
                "refused": len(one.golds_refused),
                "warnings": one.warnings,
            }
            for one in run.data.sets
        ],
        "mode": run.data.mode,
        "found": found,
        "by_set": found.by_set() if found else {},
        "pairs": matches[:_SHOWN_PAIRS],
        "more_pairs": max(0, len(matches) - _SHOWN_PAIRS),
    }


def _ordered(run: RunRecord) -> list[Match]:
    found: Iterable[Match] = run.data.decontamination.matches if run.data and run.data.decontamination else ()
    return sorted(found, key=lambda match: (not match.contaminated, -match.containment))
