"""The benchmarks as they are: row counts, where each keeps its golds, and duplicates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rloop_core.config import ProblemSource
from rloop_core.problems import REGISTRY, ProblemSet, load_problems

DATA = Path(__file__).parents[3] / "shared" / "data"
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="the local copies of the benchmarks are not at hand")

ROWS = {
    "aime24": 30, "minerva_math": 272, "math500": 500, "gsm8k_test": 1319, "gsm8k_train": 7473,
    "omni_math_rule": 2821,
}  # fmt: skip
KNOWN = {"aime24": ("aime24", "train"), "minerva_math": ("minerva_math", "test"), "math500": ("math500", "test"),
         "gsm8k_train": ("gsm8k", "train"), "gsm8k_test": ("gsm8k", "test")}  # fmt: skip


def load(name: str) -> ProblemSet:
    return load_problems(ProblemSource(source=str(DATA / f"{name}.jsonl")))


def lines(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DATA / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("name", ROWS)
def test_every_row_is_read_and_kept_but_omnis_five_duplicates(name: str) -> None:
    loaded = load(name)
    duplicates = 5 if name == "omni_math_rule" else 0
    assert loaded.ledger["rows_read"] == ROWS[name]
    if name in KNOWN:
        assert REGISTRY[KNOWN[name][0]].rows[KNOWN[name][1]] == ROWS[name]
    assert loaded.ledger["kept"] == len(loaded) == ROWS[name] - duplicates
    assert loaded.ledger["duplicates_dropped"] == duplicates
    assert loaded.ledger["malformed_skipped"] == loaded.ledger["conflicting_problems"] == 0
    assert loaded.warnings == ()


def test_seven_aime_golds_keep_their_leading_zeros() -> None:
    golds = [problem.gold for problem in load("aime24")]
    assert sorted(gold for gold in golds if gold.startswith("0")) == ["023", "025", "033", "045", "055", "073", "080"]
    assert all(len(gold) == 3 for gold in golds)


def test_minervas_golds_are_what_the_boxes_of_the_solutions_hold() -> None:
    rows, problems = lines("minerva_math"), load("minerva_math").problems
    for row, problem in zip(rows, problems, strict=True):
        solution = row["solution"]
        assert solution.count("\\boxed") == 1
        begin = end = solution.index("{", solution.index("\\boxed")) + 1
        depth = 1
        while depth:
            depth += {"{": 1, "}": -1}.get(solution[end], 0)
            end += 1
        inside = solution[begin : end - 1].strip()
        assert problem.gold == inside or problem.gold == inside.strip("$. ")
    assert [problems[n].gold for n in (0, 1, 4, 35)] == ["1.6", "4.5e33", "0.006", r"\arcsin{1.3 \sin{\theta_w}}"]


def test_gsm8ks_golds_follow_the_hashes() -> None:
    for row, problem in zip(lines("gsm8k_test"), load("gsm8k_test"), strict=True):
        assert row["answer"].endswith(f"#### {problem.gold}")
