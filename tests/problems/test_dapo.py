"""DAPO's training set: a hundred copies of each problem, wrapped in an instruction, some with golds that contradict."""

from __future__ import annotations

from pathlib import Path

import pytest

from rloop_core.config import ProblemSource
from rloop_core.problems import ProblemSet, load_problems, render
from tests.problems.dapo_rows import INSTRUCTION, Dapo, dapo, write


@pytest.fixture(scope="module")
def made() -> Dapo:
    return dapo()


@pytest.fixture(scope="module")
def loaded(made: Dapo, tmp_path_factory: pytest.TempPathFactory) -> ProblemSet:
    file = write(made.rows, tmp_path_factory.mktemp("dapo") / "dapo-math-17k.parquet")
    return load_problems(ProblemSource(source=str(file)))


def test_every_copy_is_accounted_for_and_contradictions_are_dropped(made: Dapo, loaded: ProblemSet) -> None:
    """By index there are 140 problems, by prompt 128, after NFKC and case-folding 120, of which 4 have two golds."""
    ledger = loaded.ledger
    assert ledger["rows_read"] == len(made.rows) > 13_000
    assert (ledger["kept"], len(loaded), ledger["conflicting_problems"]) == (116, 116, 4)
    parts = ("kept", "duplicates_dropped", "conflicting_golds_dropped")
    assert ledger["rows_read"] == sum(ledger[part] for part in parts)
    assert not {problem.problem for problem in loaded}.intersection(made.contradicted)
    assert {"030", "30", "31"} in [set(one.golds) for one in loaded.conflicts]
    for one in loaded.conflicts:
        for gold, place in one.golds.items():
            row = made.rows[int(place.removeprefix("row ")) - 1]
            assert row["reward_model"]["ground_truth"] == gold  # type: ignore[index]
    assert any("4 problems left out, since the golds contradict" in warning for warning in loaded.warnings)


def test_the_instruction_around_a_problem_is_removed(made: Dapo, loaded: ProblemSet, tmp_path: Path) -> None:
    texts = {row["prompt"][0]["content"].split("\n\n")[1] for row in made.rows}  # type: ignore[index]
    assert {problem.problem for problem in loaded} <= texts
    assert render(loaded.problems[0].problem, "answer-line").count("Answer: $Answer") == 1
    like = INSTRUCTION.format("What is 1+1?").replace("Remember", "Please remember")
    rows = dapo(problems=1, copies=3).rows
    rows[0]["prompt"] = [{"content": like, "role": "user"}]
    other = load_problems(ProblemSource(source=str(write(rows, tmp_path / "p.parquet"))))
    assert like in {problem.problem for problem in other}, "what only resembles the instruction stays"


def test_a_long_load_reports_progress(made: Dapo, tmp_path: Path) -> None:
    told: list[tuple[int, int | None]] = []
    source = ProblemSource(source=str(write(made.rows, tmp_path / "p.parquet")))
    load_problems(source, lambda done, total: told.append((done, total)))
    assert told[0] == (0, len(made.rows)) and len(told) > 10
    assert [done for done, _ in told] == sorted({done for done, _ in told})
