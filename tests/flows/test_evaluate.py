"""Flow `evaluate`: its samples and metrics are in the store, and its state says where."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flows.evaluate import evaluate
from tests.conftest import embedded_prefect

pytestmark = [pytest.mark.process, pytest.mark.long]


def test_an_evaluations_samples_and_metrics_go_to_the_store(tmp_path: Path) -> None:
    embedded_prefect()
    state = evaluate(
        problems="reasoning_gym:chain_sum", limit=3, samples=2, template="plain", max_tokens=24,
        store=str(tmp_path / "store"), out=str(tmp_path / "mine"), return_state=True,
    )  # fmt: skip
    folder = tmp_path / "store/evaluations/mine"
    assert state.message.startswith("bundled on reasoning_gym:chain_sum: avg@2 ") and state.message.endswith(
        str(folder)
    )
    assert json.loads((folder / "metrics.json").read_text())["samples"] == 6
    assert {path.name for path in folder.rglob("*") if path.is_file()} == {
        path.name for path in (tmp_path / "mine").rglob("*") if path.is_file()
    }
