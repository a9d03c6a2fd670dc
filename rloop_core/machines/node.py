"""A further machine's part: wait for stages that are computed together, do its share, say what came of it."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from rloop_core.config import Config
from rloop_core.errors import RLoopError, StageCrashed, StageError, error_as_data
from rloop_core.machines.beats import Beating, Watching
from rloop_core.machines.post import ENDED, HEAD, LAUNCH, NODE, post_folder, releases
from rloop_core.stages.job import Share, StageJob
from rloop_core.stages.process import run_in_process, warm_up
from rloop_core.stages.ranks import read_job

_PAUSE = 0.2


def serve(config: Config, tell: Callable[[str], None], idle_seconds: float) -> str:
    """Compute shares of a run's stages until the run has ended, or nobody has been there for so long.

    Args:
        config: The run's config.
        tell: Called with one line at a time: what this machine does.
        idle_seconds: Patience with a run that does not show itself.

    Returns:
        Why it ends.
    """
    assert config.placement.scratch
    folder = post_folder(config.placement.scratch, config.name)
    name = f"{NODE}{socket.gethostname()}-{os.getpid()}.json"
    watch, silence = Watching(folder), config.placement.machines_silence_seconds
    warm_up()
    with Beating(folder / name, busy=False, releases=releases()) as me:
        tell(f"waits for run {config.name!r} in {folder}")
        watch.look()
        ended_before = watch.content(ENDED)
        seen = time.monotonic()
        through = ""
        while True:
            time.sleep(_PAUSE)
            watch.look()
            launch = watch.content(LAUNCH)
            if launch and name in launch["nodes"] and launch["id"] != through:
                through = str(launch["id"])
                me.say(busy=True)
                error = _take_part(launch, launch["nodes"].index(name) + 1, watch, silence, tell)
                me.say(busy=False, through=through, error=error and error_as_data(error))
            if watch.lives(HEAD, silence) or watch.lives(LAUNCH, silence):
                seen = time.monotonic()
            elif (ended := watch.content(ENDED)) and ended != ended_before:
                return "the run has ended"
            elif time.monotonic() - seen > idle_seconds:
                return f"no run showed itself for {idle_seconds / 60:.0f} minutes"


def _take_part(
    launch: dict[str, Any], machine: int, watch: Watching, silence: float, tell: Callable[[str], None]
) -> RLoopError | None:
    """This machine's share of a launch; what went wrong here, if anything did."""
    over = False

    def is_over() -> bool:
        nonlocal over
        watch.look()
        now = watch.content(LAUNCH)
        over = over or now is None or now["id"] != launch["id"] or watch.silent_seconds(LAUNCH) > silence
        return over

    try:
        job = _share_of(launch, machine)
        tell(f"{job.name}: machine {machine} of {len(launch['nodes']) + 1}, log in {job.log_file}")
        run_in_process(job, lambda event: None, should_stop=is_over)
    except RLoopError as error:
        if over:
            tell("is over")
            return StageError("was told to stop by the first machine")
        tell(str(error))
        return error
    tell("is done")
    return None


def _share_of(launch: dict[str, Any], machine: int) -> StageJob:
    path = Path(launch["job"])
    try:
        job = read_job(path)
    except (OSError, json.JSONDecodeError) as error:
        fix = "mount placement.scratch at the same path on all machines"
        raise StageCrashed(f"cannot read {path}: {error}", field="placement.scratch", fix=fix) from error
    return replace(job, share=Share(machine, len(launch["nodes"]) + 1, launch["endpoint"]))
