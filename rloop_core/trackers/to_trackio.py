"""trackio: a database below `<tracker_folder>/trackio`, or what TRACKIO_DIR, _SPACE_ID or _SERVER_URL name."""

from __future__ import annotations

import os
from typing import Any

from rloop_core.trackers.kinds import PROJECT, TrackedRun


def open_tracker(run: TrackedRun) -> TrackioTracker:
    """The run of this name, gone on with where there is one. trackio knows runs by name, so that it is the key."""
    os.environ.setdefault("TRACKIO_DIR", str(run.folder / "trackio"))  # read when it is imported
    import trackio

    opened = trackio.init(
        project=os.environ.get("TRACKIO_PROJECT", PROJECT),
        name=run.key,
        group=run.group,
        config=run.config,
        resume="allow",
        embed=False,
        auto_log_gpu=False,
        auto_log_cpu=False,
    )
    return TrackioTracker(opened)


class TrackioTracker:
    """One trackio run."""

    def __init__(self, run: Any) -> None:
        self._run = run

    def log(self, step: int, values: dict[str, float]) -> None:
        """Values at a step."""
        self._run.log(dict(values), step=step)

    def close(self, *, failed: bool) -> None:
        """Write, or send, what is left."""
        self._run.finish()
