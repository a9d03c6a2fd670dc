"""A phase that dies at an RL step and is started again, its files damaged or not, beside one that never died."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
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
    config: Config, make_job: Callable[..., TrainingJob], verifier: Verifier, dies_after: int
) -> TrainingJob:
    """Of five RL steps with a checkpoint after every second one; returns the job of the phase that never died.

    Args:
        config: Of the phase.
        make_job: Makes its jobs.
        verifier: Judges its rollouts.
        dies_after: RL step after which a second phase dies, before its checkpoint is written.
    """
    problems = encoded(config)
    whole = make_job(config, "whole")
    explore(whole, problems, verifier, lambda row: None)
    counts = write_artifact(whole, whole.work / "out")

    _die(make_job(config, "killed"), verifier, dies_after)
    again: list[int] = []
    killed = make_job(config, "killed", attempt=1)
    explore(killed, problems, verifier, lambda row: again.append(row["step"]))
    checkpoint = (dies_after - 1) // 2 * 2
    assert again == list(range(checkpoint + 1, 6)), "only the RL steps after the last checkpoint run again"
    assert write_artifact(killed, killed.work / "out") == counts
    assert folder_digest(killed.work / "out") == folder_digest(whole.work / "out")
    return whole


def check_damaged_equals_whole(
    config: Config, make_job: Callable[..., TrainingJob], verifier: Verifier, files: Sequence[str]
) -> None:
    """Empty a file of a phase that died after the fifth of six RL steps, with checkpoints after the second and fourth.

    Args:
        config: Of the phase, with a snapshot after every second RL step.
        make_job: Makes its jobs.
        verifier: Judges its rollouts.
        files: Which files below the phase's work folder, one after the other.
    """
    whole = make_job(config, "whole")
    explore(whole, encoded(config), verifier, lambda row: None)
    write_artifact(whole, whole.work / "out")
    killed = make_job(config, "killed")
    _die(killed, verifier, 5)
    for file in files:
        job = make_job(config, "damaged", attempt=1)
        shutil.copytree(killed.work, job.work, dirs_exist_ok=True)
        (job.work / file).write_bytes(b"")
        notes: list[str] = []
        again: list[int] = []
        explore(job, encoded(config), verifier, lambda row: again.append(row["step"]), notes.append)  # noqa: B023
        assert again[0] == (3 if file.startswith("checkpoints") else 1), f"{file}: goes on after {again[0] - 1}"
        assert notes, file
        assert write_artifact(job, job.work / "out")["steps"] == 6
        assert folder_digest(job.work / "out") == folder_digest(whole.work / "out"), file
        shutil.rmtree(job.work)


def _die(job: TrainingJob, verifier: Verifier, last: int) -> None:
    """Explore until an RL step, and die there."""

    def die(row: dict[str, Any]) -> None:
        if row["step"] == last:
            raise Killed

    with pytest.raises(Killed):
        explore(job, encoded(job.config), verifier, die)
