"""A row of any supported schema to (problem text, gold text)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rloop_core.verifier.extract import extract
from rloop_core.verifier.golds import gold_text

PROBLEM_COLUMNS = ("problem", "question", "prompt")
GOLD_COLUMNS = ("answer", "reward_model.ground_truth", "solution")
_WORKED_COLUMNS = ("solution",)
"""Columns that hold a worked solution, whose gold is in its last box or after GSM8K's `####`."""


def problem_and_gold(
    row: object,
    problem_columns: Sequence[str] = PROBLEM_COLUMNS,
    gold_columns: Sequence[str] = GOLD_COLUMNS,
) -> tuple[str, str]:
    """The first of the columns that holds a problem, and the first that holds a gold answer.

    A chat prompt (list of role and content) gives its last user message; a dotted column reads a nested field.

    Raises:
        ValueError: The row is no object, or lacks a problem or a usable gold; says which.
    """
    if not isinstance(row, Mapping):
        raise ValueError("is not an object with named fields")
    problem = next((text for column in problem_columns if (text := _problem(_field(row, column)))), None)
    if problem is None:
        raise ValueError(f"has no problem text in {', '.join(problem_columns)}")
    return problem, _gold(row, gold_columns)


def _field(row: Mapping[str, Any], column: str) -> Any:
    """The value at a dotted path, None when any part is missing."""
    value: Any = row
    for part in column.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _problem(value: object) -> str | None:
    if isinstance(value, str):
        return value.strip() or None
    if isinstance(value, Sequence):
        said = [m.get("content") for m in value if isinstance(m, Mapping) and m.get("role") == "user"]
        return _problem(said[-1]) if said and isinstance(said[-1], str) else None
    return None


def _gold(row: Mapping[str, Any], columns: Sequence[str]) -> str:
    reason = f"has no gold answer in {', '.join(columns)}"
    for column in columns:
        value = _field(row, column)
        if value is None:
            continue
        try:
            return _worked(value) if column in _WORKED_COLUMNS and isinstance(value, str) else gold_text(value)
        except ValueError as error:
            reason = f"field {column}: {error}"
    raise ValueError(reason)


def _worked(solution: str) -> str:
    """The gold of a worked solution: its last box, else what follows `####`."""
    answer, boxes = extract(solution)
    if boxes and answer is not None:
        return gold_text(answer)
    if "####" in solution:
        return gold_text(solution)
    raise ValueError("the solution has neither a closed \\boxed{} nor ####")
