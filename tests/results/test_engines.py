"""Which engine drew a run's completions, and how far it drifted from the trainer, where a reader looks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from rloop_core.cli.entry import group
from rloop_core.results.compare.comparability import version_notes
from rloop_core.results.report import figures
from rloop_core.results.report.write import gather
from rloop_core.results.run_record import read_run
from rloop_core.training.drift import drift_note
from tests.results.conftest import FIGURES, FakeRun, fake_config, report_text

ENGINES = {"explore": "transformers 5.23.0", "harvest": "vllm 0.29.0", "evaluate": "vllm 0.29.0"}
SENTENCE = (
    "In 2 of 4 RL steps vLLM's log-probabilities were more than 0.1 nats a token from the trainer's (at most 0.300; "
    "placement.vllm.drift_alarm): it may have drawn from another policy than the one that was trained."
)


class Drifting(FakeRun):
    def explore(self, out: Path) -> dict[str, Any]:
        metrics = super().explore(out)
        rows = [{"step": step, **FIGURES, "drift": drift} for step, drift in ((1, 0.02), (2, 0.3))]
        (out / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return metrics


@pytest.mark.parametrize("alarm", [0.1, 0.5])
def test_drift_has_a_curve_in_the_report_and_an_alarm_a_sentence(alarm: float, tmp_path: Path) -> None:
    run = Drifting(tmp_path, fake_config(placement={"vllm": {"drift_alarm": alarm}}))
    for iteration in (0, 1):
        run.publish(iteration, "explore", run.explore)
    drawn = figures.health(gather(read_run(run.store, "tiny", tmp_path)).steps)
    assert drawn and [row[drawn.table.columns.index("drift")] for row in drawn.table.rows] == [0.02, 0.3, 0.02, 0.3]
    text = report_text(run.store, cache=tmp_path)
    assert (SENTENCE.replace("'", "&#39;") in text) == (alarm == 0.1) == ("nats a token from" in text)


def test_without_vllm_nothing_speaks_of_drift(complete: FakeRun, tmp_path: Path) -> None:
    drawn = figures.health(gather(read_run(complete.store, "tiny", tmp_path)).steps)
    assert drawn and "entropy" in drawn.table.columns and "drift" not in drawn.table.columns
    assert drift_note([dict(FIGURES)], 0.1) is None


def test_the_engines_that_drew_are_in_report_and_status(tmp_path: Path) -> None:
    run = FakeRun(tmp_path, fake_config())
    run.engines = ENGINES
    run.fill(1)
    words = "vllm 0.29.0 (evaluate, harvest); transformers 5.23.0 (explore)"
    assert f"Completions drawn by {words}</p>" in report_text(run.store, cache=tmp_path)
    asked = ["status", "tiny", "--store", str(tmp_path / "store")]
    said = " ".join(CliRunner().invoke(group, asked).output.split())
    assert f"completions drawn by {words}" in said
    assert json.loads(CliRunner().invoke(group, [*asked, "--json"]).output)["drawn_by"] == words


@pytest.mark.parametrize("other", ["vllm 0.29.0", "transformers 5.23.0"])
def test_arms_that_other_engines_drew_for_say_so(other: str, tmp_path: Path) -> None:
    arms = []
    for place, engine in (("a", "vllm 0.29.0"), ("b", other)):
        (tmp_path / place).mkdir()
        run = FakeRun(tmp_path / place, fake_config())
        run.engines = {"evaluate": engine}
        run.fill(0)
        arms.append(read_run(run.store, "tiny", tmp_path / place))
    notes = version_notes(*arms)
    assert notes == [] if other == "vllm 0.29.0" else "evaluate by vllm 0.29.0 in tiny, by transformers" in notes[0]
