"""What a tracker is told, whichever it is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

PROJECT = "rloop"
"""Project, or experiment, of all runs in trackers that have such a thing."""


@dataclass(frozen=True)
class TrackedRun:
    """A stage of an iteration, as one run of a tracker.

    Args:
        name: `<run>-000-explore`.
        group: The RLoop run.
        key: Tells this run from others of the same name under another config; the same again after a crash.
        axis: What a step is: `rl_step` or `update`.
        config: The run's config but its placement, flat: `explore.learning_rate` and so on.
        folder: Local folder of all trackers.
    """

    name: str
    group: str
    key: str
    axis: str
    config: dict[str, Any]
    folder: Path


class Tracker(Protocol):
    """One tracker's run. A step that is done again after a crash is logged again, with equal values."""

    def log(self, step: int, values: dict[str, float]) -> None:
        """Values at a step, by name."""

    def close(self, *, failed: bool) -> None:
        """No more will come from this process."""
