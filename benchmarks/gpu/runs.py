"""A run's stages called one by one, as `rloop run` calls them, but without Prefect: a GPU image may lack it."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

from rloop_core.config import Config
from rloop_core.stages.process import run_in_process
from rloop_core.stages.runner import Launcher, StageRunner
from rloop_core.store import Lease, Store

Listener = Callable[[str, int, dict[str, Any]], None]


@contextlib.contextmanager
def runner_of(
    config: Config, listen: Listener = lambda stage, iteration, event: None, launch: Launcher = run_in_process
) -> Iterator[StageRunner]:
    """A runner that holds the run's lease; see `StageRunner`."""
    store = Store(config.placement.store)
    with Lease(store, config.name) as lease:
        yield StageRunner(config, store, lease, listen, launch)


class Killer:
    """Kills processes of a stage once it has come so far: a listener for `runner_of`.

    Args:
        stage: The stage to kill; others are let go.
        far: Steps or batches, as the stage's events count them.
        which: Says of a command line whether its process is one to kill; None kills the stage's whole tree at once.
    """

    def __init__(self, stage: str, far: float, which: Callable[[str], bool] | None = None) -> None:
        self._stage, self._far, self._which = stage, far, which
        self._idle = {process.pid for process in _below()}
        self.killed: list[int] = []

    def __call__(self, stage: str, iteration: int, event: dict[str, Any]) -> None:
        """Kill, once."""
        if stage != self._stage or self.killed or event.get("kind") != "step" or event["done"] < self._far:
            return
        for process in _below():
            with contextlib.suppress(ProcessLookupError, OSError):
                if process.pid not in self._idle and (self._which is None or self._which(_command(process))):
                    os.kill(process.pid, signal.SIGKILL)
                    self.killed.append(process.pid)


def _below() -> list[Any]:
    import psutil

    return psutil.Process().children(recursive=True)


def _command(process: Any) -> str:
    import psutil

    try:
        return f"{process.name()} {' '.join(process.cmdline())}"
    except psutil.Error:
        return ""
