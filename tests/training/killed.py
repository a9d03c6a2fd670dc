"""A phase that dies at an RL step and is started again, beside one that never died."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rloop_core.config import Config
from rloop_core.training.explore import explore, write_artifact
from rloop_core.training.settings import TrainingJob
from rloop_core.verifier import Verifier
from tests.conftest import encoded, folder_digest


class Killed(BaseException):
    """Stands for the end of the process: nothing in a phase handles it."""


def check_killed_equals_whole(
    config: Config, make_job: Callable[..., TrainingJob], verifier: Verifier, *dies_after: int
) -> TrainingJob:
    """Of five RL steps with a checkpoint after every second one; returns the job of the phase that never died.

    Args:
        config: Of the phase.
        make_job: Makes its jobs.
        verifier: Judges its rollouts.
        dies_after: RL steps after which a phase of its own dies, before their checkpoint is written.
    """
    problems = encoded(config)
    whole = make_job(config, "whole")
    explore(whole, problems, verifier, lambda row: None)
    counts = write_artifact(whole, whole.work / "out")

    for number in dies_after:

        def die(row: dict[str, Any], last: int = number) -> None:
            if row["step"] == last:
                raise Killed

        name = f"killed-{number}"
        with pytest.raises(Killed):
            explore(make_job(config, name), problems, verifier, die)
        again: list[int] = []
        killed = make_job(config, name, attempt=1)
        explore(killed, problems, verifier, lambda row: again.append(row["step"]))  # noqa: B023
        checkpoint = (number - 1) // 2 * 2
        assert again == list(range(checkpoint + 1, 6)), "only the RL steps after the last checkpoint run again"
        assert write_artifact(killed, killed.work / "out") == counts
        assert folder_digest(killed.work / "out") == folder_digest(whole.work / "out")
    return whole
