"""What a stage is asked to do, and what it answers: plain values that cross process and machine boundaries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

STAGES = ("explore", "harvest", "filter", "rft", "evaluate")

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


@dataclass(frozen=True)
class StageOutcome:
    """What a stage computed; its files lie in `<work>/out`.

    Args:
        counts: Integers worth keeping (rows, problems, steps).
        metrics: Figures worth keeping.
        seconds: Time it took.
    """

    counts: dict[str, Any]
    metrics: dict[str, Any]
    seconds: float = 0.0
