"""Evaluation runs concurrently with exploration, or before it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tasks import stages
from tests.conftest import small_config


@pytest.mark.parametrize(
    ("placement", "order"),
    [
        ({}, ["submitted", "explored", "waited"]),
        ({"parallel_evaluation": False}, ["evaluated", "explored"]),
        ({"device": "cuda"}, ["evaluated", "explored"]),
        ({"device": "cuda", "pools": {"evaluate": "spare"}}, ["submitted", "explored", "waited"]),
        ({"device": "cuda", "pools": {"evaluate": "gpu", "explore": "gpu"}}, ["evaluated", "explored"]),
    ],
)
def test_evaluation_waits_for_gpus_that_exploration_uses_too(
    placement: dict[str, Any], order: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    class Evaluate:
        def __call__(self, run: Any, iteration: int) -> None:
            done.append("evaluated")

        def submit(self, run: Any, iteration: int) -> Any:
            done.append("submitted")
            return SimpleNamespace(result=lambda: done.append("waited"))

    monkeypatch.setattr(stages, "evaluate", Evaluate())
    config = small_config(placement={"store": "/shared/store", **placement})
    with stages.concurrent_evaluation(SimpleNamespace(config=config, evaluates=lambda _: True), 0):  # type: ignore[arg-type]
        done.append("explored")
    assert done == order
