"""What a stage is asked to do, and what it answers: plain values that cross process and machine boundaries."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

STAGES = ("explore", "harvest", "filter", "rft", "evaluate")

STAGES_WITH_RANKS = ("explore", "rft")
"""The stages that train; the others are one process whatever placement says."""

STAGE_VERSIONS = {"explore": 2, "harvest": 3, "filter": 1, "rft": 1, "evaluate": 4}
"""Raised when a stage's code changes what it computes, so that old artifacts are not taken for new ones."""


@dataclass(frozen=True)
class InputRef:
    """One thing a stage reads.

    Args:
        role: What the stage uses it for: `policy`, `trajectories`, `experts`, `problems` or `problems:<set>`.
        kind: `outside` is a local folder (theta_0), `artifact` another stage's, `problems` a stored problem set.
        uri: Where it is, for the manifest.
        digest: Content digest.
        location: Folder path, or key in the store.
        iteration: Of an artifact.
        stage: Of an artifact.
    """

    role: str
    kind: Literal["outside", "artifact", "problems"]
    uri: str
    digest: str
    location: str
    iteration: int = 0
    stage: str = ""


@dataclass(frozen=True)
class Share:
    """What one of several machines computes of a stage.

    Of a stage that trains these are its ranks, of one that draws its batches.

    Args:
        machine: Its number; the first, 0, is the run's own.
        machines: How many there are.
        endpoint: `address:port` of the first, where the ranks of the others join it.
    """

    machine: int
    machines: int
    endpoint: str = ""


@dataclass(frozen=True)
class StageJob:
    """One stage of one iteration.

    Args:
        stage: One of STAGES.
        run: Name of the run.
        iteration: i; -1 for the evaluation of theta_0.
        config: The run's config as plain data.
        store: URI of the store.
        inputs: What it reads.
        work: Scratch folder; survives crashes.
        cache: Folder for downloads from remote stores.
        attempt: How often it was started before.
        share: Which part of it, where several machines compute it.
    """

    stage: str
    run: str
    iteration: int
    config: dict[str, Any]
    store: str
    inputs: tuple[InputRef, ...]
    work: str
    cache: str
    attempt: int
    share: Share | None = None

    @property
    def log_file(self) -> Path:
        """What the stage's processes print; each machine has a file of its own in the folder that all of them see."""
        return Path(self.work) / f"stage{self._suffix}.log"

    @property
    def outcome_file(self) -> Path:
        """What came of it, as JSON."""
        return Path(self.work) / f"outcome{self._suffix}.json"

    @property
    def name(self) -> str:
        """`run/iteration-000/explore`, for messages."""
        place = f"iteration-{self.iteration:03d}" if self.iteration >= 0 else "base"
        return f"{self.run}/{place}/{self.stage}"

    @property
    def _suffix(self) -> str:
        return f"-{self.share.machine}" if self.share and self.share.machine else ""


@dataclass(frozen=True)
class StageOutcome:
    """What a stage computed; its files lie in `<work>/out`.

    Args:
        counts: Integers worth keeping (rows, problems, steps).
        metrics: Figures worth keeping.
        seconds: Time it took.
        drawn_by: The engine, with its version, that drew its completions; None where none were drawn.
    """

    counts: dict[str, Any]
    metrics: dict[str, Any]
    seconds: float = 0.0
    drawn_by: str | None = None


def place_of(iteration: int) -> str:
    """`000`, or `base` for what belongs to theta_0."""
    return "base" if iteration < 0 else f"{iteration:03d}"


def ranks_of(job: StageJob) -> int:
    """Processes that a job is to have, on all machines together."""
    return int(job.config["placement"].get("processes", 1)) if job.stage in STAGES_WITH_RANKS else 1


def machines_of(job: StageJob) -> int:
    """Machines that are to share a job: its ranks, or the batches that it draws."""
    shared = job.stage in STAGES_WITH_RANKS or draws(job)
    return int(job.config["placement"].get("machines", 1)) if shared else 1


def draws(job: StageJob) -> bool:
    """Whether a job's time goes into drawing completions, in batches that anybody may draw."""
    return job.stage == "evaluate" or (job.stage == "harvest" and job.config["harvest"]["snapshot_samples"] > 0)
