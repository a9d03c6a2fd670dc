"""The real command with a training file that holds evaluation problems: preflight and report say so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rloop_core.config import load_config
from rloop_core.problems import load_problems
from tests.conftest import SMOKE, run_rloop

pytestmark = [pytest.mark.process, pytest.mark.long]


@pytest.fixture
def dirty(tmp_path: Path) -> list[str]:
    """Arguments of a smoke run of one iteration whose training file holds two of the eight held-out problems."""
    config = load_config(SMOKE)
    training, held_out = load_problems(config.problems), load_problems(config.evaluate.sets[0])
    rows = [(one.problem, one.gold) for one in training]
    rows[3] = held_out.problems[2].problem, held_out.problems[2].gold
    rows[5] = (
        f"Compute ${held_out.problems[4].problem.partition(': ')[2].removesuffix('=').strip()}$.",
        held_out.problems[4].gold,
    )
    path = tmp_path / "train.jsonl"
    path.write_text("".join(json.dumps({"problem": text, "answer": gold}) + "\n" for text, gold in rows))
    fields = [f"problems={json.dumps({'source': str(path), 'name': 'train'})}", "explore.steps=1", "iterations=1"]
    return ["run", "--config", str(SMOKE), *(part for field in fields for part in ("--set", field))]


def test_contamination_is_said_and_reported_with_and_without(tmp_path: Path, dirty: list[str]) -> None:
    store = tmp_path / "store"
    first = run_rloop(*dirty, "--store", str(store))
    sentence = "2 of 24 training problems contaminated by held-out (2)"
    assert f"preflight: note: {sentence}: kept, and evaluated with and without" in first.stdout
    assert "held-out, without 2 contaminated" in first.stdout and "6 problems" in first.stdout
    status = run_rloop("status", "smoke", "--store", str(store))
    assert sentence in status.stdout
    report = store / "smoke/report"
    assert f"{sentence}: they were trained on" in (report / "report.html").read_text()
    assert len((report / "decontamination.csv").read_text().splitlines()) == 1 + 2
