"""DAPO's training set: a hundred copies of each problem, wrapped in an instruction, some with golds that contradict."""

from __future__ import annotations

import subprocess
import sys
import unicodedata
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


def test_every_copy_is_accounted_for_under_the_strictest_key(made: Dapo, loaded: ProblemSet) -> None:
    prompts = [row["prompt"][0]["content"] for row in made.rows]  # type: ignore[index]
    by_index = len({row["extra_info"]["index"] for row in made.rows})  # type: ignore[index]
    by_prompt = len(set(prompts))
    normalised = len({unicodedata.normalize("NFKC", prompt).casefold() for prompt in prompts})
    assert (by_index, by_prompt, normalised) == (140, 128, 120)
    assert len(loaded) + len(loaded.conflicts) == normalised
    ledger = loaded.ledger
    assert ledger["rows_read"] == len(made.rows) > 13_000
    assert ledger["kept"] == len(loaded) == 116
    assert ledger["conflicting_problems"] == len(made.contradicted) == 4
    assert ledger["rows_read"] == sum(
        ledger[part] for part in ("kept", "duplicates_dropped", "conflicting_golds_dropped")
    )
    assert ledger["conflicting_golds_dropped"] == sum(v.rows for one in loaded.conflicts for v in one.variants)
    assert ledger["duplicates_dropped"] == sum(sum(v.rows for v in one.variants) - 1 for one in loaded.duplicates)


def test_contradicting_golds_are_dropped_with_a_warning(made: Dapo, loaded: ProblemSet) -> None:
    kept = {problem.problem.casefold() for problem in loaded}
    assert not kept & {text.casefold() for text in made.contradicted}
    golds = {frozenset(variant.gold for variant in one.variants) for one in loaded.conflicts}
    assert frozenset({"030", "30", "31"}) in golds
    for one in loaded.conflicts:
        for variant in one.variants:
            row = made.rows[int(variant.first.removeprefix("row ")) - 1]
            assert row["reward_model"]["ground_truth"] == variant.gold  # type: ignore[index]
    assert any("4 problems are left out, since the golds contradict" in warning for warning in loaded.warnings)


def test_one_gold_in_two_notations_is_not_a_contradiction(loaded: ProblemSet) -> None:
    twice = [one for one in loaded.duplicates if {v.gold for v in one.variants} == {"10", "010"}]
    assert len(twice) == 1


def test_the_instruction_around_a_problem_is_removed(made: Dapo, loaded: ProblemSet) -> None:
    assert {problem.problem for problem in loaded} <= {
        row["prompt"][0]["content"].split("\n\n")[1]  # type: ignore[index]
        for row in made.rows
    }
    assert render(loaded.problems[0].problem, "answer-line").count("Answer: $Answer") == 1


def test_a_problem_that_only_resembles_the_instruction_stays(tmp_path: Path) -> None:
    text = INSTRUCTION.format("What is 1+1?").replace("Remember", "Please remember")
    rows = dapo(problems=1, copies=3).rows
    rows[0]["prompt"] = [{"content": text, "role": "user"}]
    loaded = load_problems(ProblemSource(source=str(write(rows, tmp_path / "p.parquet"))))
    assert text in {problem.problem for problem in loaded}


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak memory from /proc")
def test_memory_does_not_grow_with_the_copies(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom rloop_core.config import ProblemSource\nfrom rloop_core.problems import load_problems\n"
        "load_problems(ProblemSource(source=sys.argv[1]))\n"
        "print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')))"
    )
    peaks = []
    for copies in (20, 210):
        file = write(dapo(copies=copies).rows, tmp_path / f"{copies}.parquet")
        done = subprocess.run([sys.executable, "-c", code, str(file)], capture_output=True, text=True, check=True)
        peaks.append(int(done.stdout))
    # 26,000 more rows, each of half a kilobyte of text and eight Python objects: about 50 MiB if they were kept.
    assert peaks[1] - peaks[0] < 15 * 1024


def test_a_long_load_reports_progress(made: Dapo, tmp_path: Path) -> None:
    told: list[tuple[int, int | None]] = []
    source = ProblemSource(source=str(write(made.rows, tmp_path / "p.parquet")))
    load_problems(source, lambda done, total: told.append((done, total)))
    assert told[0] == (0, len(made.rows))
    assert [done for done, _ in told] == sorted({done for done, _ in told})
    assert len(told) > 10
