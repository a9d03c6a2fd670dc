"""A stage's task passes on that its run was stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from rloop_core.errors import StageError
from tasks import stages
from tasks.session import RunSession
from tests.conftest import small_config


def test_a_stage_is_told_to_stop_once_its_run_is(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def without_progress(*arguments: Any) -> Iterator[None]:
        yield

    told: list[bool] = []

    def ensure(stage: str, iteration: int, should_stop: Callable[[], bool]) -> None:
        told.append(should_stop())
        run.stop.set()
        told.append(should_stop())
        raise StageError("was told to stop")

    monkeypatch.setattr(stages, "live_progress", without_progress)
    run = RunSession(small_config(), SimpleNamespace(ensure=ensure))  # type: ignore[arg-type]
    with pytest.raises(StageError):
        stages.explore.fn(run, 0)
    assert told == [False, True]
