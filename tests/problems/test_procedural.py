"""reasoning-gym's tasks: the same problems everywhere, golds that verify, and tasks whose golds cannot be compared."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from rloop_core.config import ProblemSource
from rloop_core.errors import ProblemsError
from rloop_core.problems import load_problems, self_check
from rloop_core.verifier import Verifier

NUMERIC = (
    "base_conversion", "basic_arithmetic", "bitwise_arithmetic", "chain_sum", "complex_arithmetic", "count_primes",
    "decimal_arithmetic", "decimal_chain_sum", "dice", "gcd", "gsm_symbolic", "lcm", "leg_counting",
    "letter_counting", "number_format", "number_sequence", "products", "simple_equations", "simple_geometry",
)  # fmt: skip


def source(task: str, **fields: Any) -> ProblemSource:
    return ProblemSource(source=f"reasoning_gym:{task}", **fields)


def refusal(wanted: ProblemSource) -> str:
    with pytest.raises(ProblemsError) as caught:
        load_problems(wanted)
    assert caught.value.fix
    return str(caught.value)


def test_seed_size_and_parameters_determine_the_problems() -> None:
    wanted = source("chain_sum", size=20, seed=3, params={"min_terms": 2, "max_terms": 3})
    first = load_problems(wanted)
    assert first.ledger["rows_read"] == 20
    assert load_problems(wanted).digest == first.digest
    assert load_problems(wanted.model_copy(update={"seed": 4})).digest != first.digest
    assert all(problem.gold.lstrip("-").isdigit() for problem in first)
    assert "refuses {'knob': 1}" in refusal(source("chain_sum", params={"knob": 1}))
    assert "refuses" in refusal(source("chain_sum", params={"min_terms": 9, "max_terms": 3}))


@pytest.mark.process
def test_another_process_generates_the_same_problems() -> None:
    code = (
        "import sys\nfrom rloop_core.config import ProblemSource\nfrom rloop_core.problems import load_problems\n"
        "for task in sys.argv[1:]:\n"
        "    print(load_problems(ProblemSource(source=f'reasoning_gym:{task}', size=3, seed=7)).digest)\n"
    )
    here = [load_problems(source(task, size=3, seed=7)).digest for task in NUMERIC]
    environment = {**os.environ, "PYTHONHASHSEED": "12345"}
    done = subprocess.run(
        [sys.executable, "-c", code, *NUMERIC], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout.split() == here


@pytest.mark.process
def test_the_golds_of_numeric_tasks_verify_and_need_no_warning() -> None:
    with Verifier() as verifier:
        for task in NUMERIC:
            loaded = load_problems(source(task, size=10, seed=1))
            assert self_check(loaded, verifier) == [], task
            assert loaded.warnings == (), task


@pytest.mark.parametrize("task", ["countdown", "n_queens", "puzzle24", "word_ladder", "shortest_path", "rush_hour"])
def test_tasks_with_many_right_answers_are_refused(task: str) -> None:
    line = refusal(source(task))
    assert f"a problem of reasoning_gym's {task} has many right answers" in line
    assert "reasoning_gym:chain_sum" in line


def test_every_task_is_accepted_warned_of_or_refused() -> None:
    from reasoning_gym.factory import DATASETS

    fates: dict[str, list[str]] = {"accepted": [], "warned of": [], "refused": []}
    for task in sorted(set(DATASETS) - {"composite"}):  # composite is made of other tasks, given as knobs
        try:
            fates["warned of" if load_problems(source(task, size=1)).warnings else "accepted"].append(task)
        except ProblemsError as error:
            fates["refused"].append(task)
            assert "many right answers" in str(error)
    # A new version of reasoning_gym may bring new tasks: they are to be looked at.
    assert {fate: len(tasks) for fate, tasks in fates.items()} == {"accepted": 58, "warned of": 30, "refused": 17}
