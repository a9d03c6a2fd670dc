"""TensorBoard: event files below `<tracker_folder>/tensorboard/<run>/`, to look at with `tensorboard --logdir`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rloop_core.trackers.kinds import TrackedRun


def open_tracker(run: TrackedRun) -> TensorBoardTracker:
    """A writer of the run's event files; an earlier process' files stay beside its own."""
    from torch.utils.tensorboard import SummaryWriter  # fails here, and not at the first step

    del SummaryWriter
    return TensorBoardTracker(run, run.folder / "tensorboard" / run.group / run.key.removeprefix(f"{run.group}-"))


class TensorBoardTracker:
    """Event files. Steps that are done again replace what was there."""

    def __init__(self, run: TrackedRun, folder: Path) -> None:
        self._run = run
        self._folder = folder
        self._writer: Any = None

    def log(self, step: int, values: dict[str, float]) -> None:
        """Values at a step; on disk when this returns."""
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(self._folder), purge_step=step)
            settings = json.dumps(self._run.config, indent=1, default=str)
            self._writer.add_text("config", f"```json\n{settings}\n```", step)
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self, *, failed: bool) -> None:
        """Write what is left."""
        if self._writer is not None:
            self._writer.close()
