"""Weights & Biases: files below `<tracker_folder>/wandb/`, for `wandb sync`; WANDB_MODE=online sends at once."""

from __future__ import annotations

import os
from typing import Any

from rloop_core.trackers.kinds import PROJECT, TrackedRun


def open_tracker(run: TrackedRun) -> WandbTracker:
    """The run with this key, gone on with where there is one. Of the machine nothing is told, nor its console."""
    import wandb

    run.folder.mkdir(parents=True, exist_ok=True)
    mode = os.environ.get("WANDB_MODE", "offline")
    settings = wandb.Settings(
        console="off",
        disable_git=True,
        save_code=False,
        silent=True,
        x_disable_meta=True,
        x_disable_machine_info=True,
        x_disable_stats=True,
        x_save_requirements=False,
    )
    opened = wandb.init(
        project=os.environ.get("WANDB_PROJECT", PROJECT),
        name=run.name,
        id=run.key,
        group=run.group,
        dir=str(run.folder),
        config=run.config,
        mode=mode,
        resume="allow" if mode == "online" else None,  # offline it is the id alone that joins what is sent later
        reinit="create_new",
        settings=settings,
    )
    opened.define_metric(run.axis)
    opened.define_metric("*", step_metric=run.axis)
    return WandbTracker(opened, run.axis)


class WandbTracker:
    """One W&B run. Its own step counts calls, so that what a chart shows is the axis."""

    def __init__(self, run: Any, axis: str) -> None:
        self._run = run
        self._axis = axis

    def log(self, step: int, values: dict[str, float]) -> None:
        """Values at a step."""
        self._run.log({**values, self._axis: step})

    def close(self, *, failed: bool) -> None:
        """Write, or send, what is left."""
        self._run.finish(exit_code=int(failed))
