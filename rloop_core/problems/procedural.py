"""Problems that reasoning-gym generates; `rewards.answers.reasoning_gym` judges them by the task's own score."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rloop_core.errors import ProblemsError
from rloop_core.problems.registry import GENERATED, PROCEDURAL_PREFIX, closest
from rloop_core.problems.sources import Rows

_TUPLE = "__tuple__"


def procedural_rows(task: str, *, size: int | None, seed: int, params: Mapping[str, Any]) -> Rows:
    """Generate `size` problems (default 100) of a reasoning-gym task; equal seed and params give equal problems.

    Raises:
        ProblemsError: There is no such task, or it refuses a parameter.
    """
    import reasoning_gym
    from reasoning_gym.factory import DATASETS

    if task not in DATASETS:
        fix = closest(PROCEDURAL_PREFIX + task, [PROCEDURAL_PREFIX + name for name in sorted(DATASETS)])
        raise ProblemsError(f"reasoning_gym has no task {task!r}", field="source", fix=fix)
    size = size or GENERATED
    try:
        entries = reasoning_gym.create_dataset(task, seed=seed, size=size, **params)
    except (TypeError, ValueError, AssertionError) as error:
        what = f"reasoning_gym task {task} refuses {dict(params)}: {str(error)[:200] or type(error).__name__}"
        raise ProblemsError(what, field="params", fix=f"use the parameters of {task}'s config class") from error
    return Rows(((f"entry {number}", _row(entry)) for number, entry in enumerate(entries, start=1)), size)


def _row(entry: dict[str, Any]) -> dict[str, Any]:
    return {"problem": entry["question"], "answer": entry["answer"], "metadata": plain_metadata(entry["metadata"])}


def plain_metadata(value: Any) -> Any:
    """Return an entry's metadata as JSON carries it; `entry_metadata` restores the tuples."""
    if isinstance(value, dict):
        return {str(key): plain_metadata(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        parts = [plain_metadata(part) for part in value]
        return parts if isinstance(value, list) else {_TUPLE: parts}
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def entry_metadata(value: Any) -> Any:
    """Return the metadata that `plain_metadata` wrote, for the task's `score_answer`."""
    if isinstance(value, dict):
        if value.keys() == {_TUPLE}:
            return tuple(entry_metadata(part) for part in value[_TUPLE])
        return {key: entry_metadata(part) for key, part in value.items()}
    return [entry_metadata(part) for part in value] if isinstance(value, list) else value
