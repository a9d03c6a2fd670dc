"""Problems that reasoning-gym generates. Completions can only be compared with the one stored answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rloop_core.errors import ProblemsError
from rloop_core.problems.registry import PROCEDURAL_PREFIX, closest
from rloop_core.problems.sources import Row, Rows

_DEFAULT_SIZE = 100

_MANY_ANSWERS = frozenset({
    "boxnet", "countdown", "cryptarithm", "graph_color", "jugs", "knight_swap", "n_queens", "palindrome_generation",
    "propositional_logic", "puzzle24", "quantum_lock", "rubiks_cube", "rush_hour", "shortest_path", "sokoban",
    "tower_of_hanoi", "word_ladder",
})  # fmt: skip
"""Tasks with many right answers that store one or none: most right completions would be judged wrong."""
_FORM = {
    "fraction_simplification": "a fraction that is not simplified",
    "polynomial_multiplication": "a product that is not expanded",
    "prime_factorization": "a number that is not factored",
}
"""Tasks that ask for a form; the verifier accepts equal values in any form."""
_ONE_ANSWER = frozenset({
    "bitwise_arithmetic", "calendar_arithmetic", "chain_sum", "circuit_logic", "color_cube_rotation",
    "complex_arithmetic", "decimal_arithmetic", "decimal_chain_sum", "dice", "emoji_mystery",
    "family_relationships", "figlet_font", "game_of_life_halting", "gsm_symbolic", "letter_jumble",
    "needle_haystack", "number_format", "path_star", "products", "rectangle_count", "self_reference",
    "spell_backward", "string_insertion", "time_intervals", "zebra_puzzles",
})  # fmt: skip
"""Tasks with their own scoring function, which tolerates only what the verifier tolerates too."""


def procedural_rows(task: str, *, size: int | None, seed: int, params: Mapping[str, Any]) -> Rows:
    """Generate `size` problems (default 100) of a reasoning-gym task; equal seed and params give equal problems.

    Raises:
        ProblemsError: There is no such task, it has many right answers, or it refuses a parameter.
    """
    import reasoning_gym
    from reasoning_gym.factory import DATASETS

    if task not in DATASETS:
        fix = closest(PROCEDURAL_PREFIX + task, [PROCEDURAL_PREFIX + name for name in sorted(DATASETS)])
        raise ProblemsError(f"reasoning_gym has no task {task!r}", field="source", fix=fix)
    if task in _MANY_ANSWERS:
        what = f"a problem of reasoning_gym's {task} has many right answers, and the verifier would know at most one"
        fix = f"choose a task with one answer, such as {PROCEDURAL_PREFIX}chain_sum"
        raise ProblemsError(what, field="source", fix=fix)
    size = size or _DEFAULT_SIZE
    try:
        entries = reasoning_gym.create_dataset(task, seed=seed, size=size, **params)
    except (TypeError, ValueError, AssertionError) as error:
        what = f"reasoning_gym task {task} refuses {dict(params)}: {str(error)[:200] or type(error).__name__}"
        raise ProblemsError(what, field="params", fix=f"use the parameters of {task}'s config class") from error
    return Rows(_rows(entries), size, _warnings(task, DATASETS[task][0]))


def _rows(entries: Any) -> Iterator[Row]:
    for number, entry in enumerate(entries, start=1):
        yield f"entry {number}", {"problem": entry["question"], "answer": entry["answer"]}


def _warnings(task: str, kind: Any) -> tuple[str, ...]:
    """Return warnings about a task that accepts other answers than the stored one."""
    from reasoning_gym.dataset import ProceduralDataset

    if task in _FORM:
        return (f"the verifier compares values: in {task}, {_FORM[task]} counts as correct",)
    if task in _ONE_ANSWER or kind.score_answer is ProceduralDataset.score_answer:
        return ()
    return (
        f"reasoning_gym judges {task} by rules of its own, the verifier by the stored answer alone: right answers in "
        "another form count as wrong",
    )
