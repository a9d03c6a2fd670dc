"""A row of any supported schema to (problem text, gold text)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rloop_core.json_text import check_text
from rloop_core.verifier.read.extract import extract
from rloop_core.verifier.read.normalise import gold_text

PROBLEM_COLUMNS = ("problem", "question", "prompt")
GOLD_COLUMNS = ("answer", "reward_model.ground_truth", "solution")
MOST_CHARACTERS = 200_000
"""Of a problem, a gold answer, or a worked solution."""
_WORKED_COLUMNS = ("solution",)
"""Columns that hold a worked solution, whose gold is in its last box or after GSM8K's `####`."""
_DAPO_BEGINS = (
    "Solve the following math problem step by step. The last line of your response should be of the form Answer: "
    "$Answer (without quotes) where $Answer is the answer to the problem."
)
_DAPO_ENDS = 'Remember to put your answer on its own line after "Answer:".'
"""The instruction that DAPO's data set writes around each problem (the `answer-line` template gives it back)."""


def problem_and_gold(
    row: object,
    problem_columns: Sequence[str] = PROBLEM_COLUMNS,
    gold_columns: Sequence[str] = GOLD_COLUMNS,
) -> tuple[str, str]:
    """The first of the columns that holds a problem, and the first that holds a gold answer.

    A chat prompt (list of role and content) gives its last user message, and DAPO's instruction around it is taken off;
    a dotted column reads a nested field.

    Raises:
        ValueError: The row is no object, or lacks a problem or a usable gold; says which.
    """
    if not isinstance(row, dict):
        raise ValueError("is not an object with named fields")
    problem = next((text for column in problem_columns if (text := _problem(_field(row, column)))), None)
    if problem is None:
        raise ValueError(f"has no problem text in {', '.join(problem_columns)}")
    gold = _gold(row, gold_columns)
    for name, text in (("problem", problem), ("gold answer", gold)):
        try:
            check_text(text)
        except ValueError as error:
            raise ValueError(f"has a {name} that {error}") from None
    return problem, gold


def _field(row: dict[str, Any], column: str) -> Any:
    """The value at a dotted path, None when any part is missing."""
    value: Any = row
    for part in column.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    for text in (message.get("content") if isinstance(message, dict) else message for message in _entries(value)):
        if isinstance(text, str) and len(text) > MOST_CHARACTERS:
            raise ValueError(f"has {len(text):,} characters in {column}, and {MOST_CHARACTERS:,} are the most")
    return value


def _entries(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else (value,)


def _problem(value: object) -> str | None:
    if isinstance(value, str):
        text = value.strip()
        if text.startswith(_DAPO_BEGINS) and text.endswith(_DAPO_ENDS):
            text = text[len(_DAPO_BEGINS) : -len(_DAPO_ENDS)].strip()
        return text or None
    if isinstance(value, list | tuple):
        for message in reversed(value):
            if isinstance(message, dict) and message.get("role") == "user":
                said = message.get("content")
                return _problem(said) if isinstance(said, str) else None
    return None


def _gold(row: dict[str, Any], columns: Sequence[str]) -> str:
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
    answer, boxes, *_ = extract(solution)
    if boxes and answer is not None:
        return gold_text(answer)
    if "####" in solution:
        return gold_text(solution)
    raise ValueError("the solution has neither a closed \\boxed{} nor ####")
