"""Problems that reasoning-gym generates. Completions can only be compared with the one stored answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rloop_core.errors import ProblemsError
from rloop_core.problems.registry import GENERATED, PROCEDURAL_PREFIX, closest
from rloop_core.problems.sources import Rows

_MANY_ANSWERS = frozenset({
    "boxnet", "countdown", "cryptarithm", "graph_color", "jugs", "knight_swap", "n_queens", "palindrome_generation",
    "propositional_logic", "puzzle24", "quantum_lock", "rubiks_cube", "rush_hour", "shortest_path", "sokoban",
    "tower_of_hanoi", "word_ladder",
})  # fmt: skip
"""Tasks with many right answers that store one or none: most right completions would be judged wrong."""
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
    from reasoning_gym.dataset import ProceduralDataset
    from reasoning_gym.factory import DATASETS

    if task not in DATASETS:
        fix = closest(PROCEDURAL_PREFIX + task, [PROCEDURAL_PREFIX + name for name in sorted(DATASETS)])
        raise ProblemsError(f"reasoning_gym has no task {task!r}", field="source", fix=fix)
    if task in _MANY_ANSWERS:
        what = f"a problem of reasoning_gym's {task} has many right answers, and the verifier would know at most one"
        fix = f"choose a task with one answer, such as {PROCEDURAL_PREFIX}chain_sum"
        raise ProblemsError(what, field="source", fix=fix)
    size = size or GENERATED
    try:
        entries = reasoning_gym.create_dataset(task, seed=seed, size=size, **params)
    except (TypeError, ValueError, AssertionError) as error:
        what = f"reasoning_gym task {task} refuses {dict(params)}: {str(error)[:200] or type(error).__name__}"
        raise ProblemsError(what, field="params", fix=f"use the parameters of {task}'s config class") from error
    rows = ({"problem": entry["question"], "answer": entry["answer"]} for entry in entries)
    warnings: tuple[str, ...] = ()
    own_rules = DATASETS[task][0].score_answer is not ProceduralDataset.score_answer
    if own_rules and task not in _ONE_ANSWER:
        what = f"reasoning_gym judges {task} by rules of its own, the verifier by the stored answer alone"
        warnings = (f"{what}: right answers in another form count as wrong",)
    return Rows(((f"entry {number}", row) for number, row in enumerate(rows, start=1)), size, warnings)
