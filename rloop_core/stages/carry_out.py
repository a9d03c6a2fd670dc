"""A stage as the worker that another pool's run asked sees it: compute, and publish under the run's lease."""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rloop_core.config import make_config
from rloop_core.errors import RLoopError, StageCrashed, StageError, StoreError
from rloop_core.stages.on_machines import run_stage
from rloop_core.stages.remote import Order, RemoteStage
from rloop_core.stages.runner import Launcher, StageRunner
from rloop_core.store import DelegatedLease, Manifest, Store

Event = dict[str, Any]

_PAUSE_SECONDS = 1.0
_BRIEF_SECONDS = 10.0
_LOCK_SECONDS = 60.0


class NoLongerWanted(StageError):  # noqa: N818 - says what is the case
    """The run that asked is over, or has asked another; nothing was published."""


def carry_out(
    remote: RemoteStage,
    order: Order,
    listen: Callable[[str, int, Event], None] = lambda stage, iteration, event: None,
    launch: Launcher = run_stage,
) -> Manifest:
    """Make the artifact that a run ordered.

    Args:
        remote: The stage.
        order: What `remote.take` returned.
        listen: Called with (stage, iteration, event), as `StageRunner` has it.
        launch: Runs a job and returns its outcome, likewise.

    Raises:
        NoLongerWanted: The run has ended, or no longer wants it; the stage's processes are ended.
        RLoopError: The stage failed, and its run was told.
    """
    config = make_config(order.config)

    def note(line: str) -> None:
        listen(remote.stage, remote.iteration, {"kind": "note", "note": line})

    store = Store(remote.store.uri, config.placement.store_patience_seconds, note)
    lease = DelegatedLease(store, remote.run, order.token)
    runner = StageRunner(config, store, lease, listen, launch)
    with _watching(remote.hasty(_BRIEF_SECONDS), lease) as over:
        try:
            with _alone(runner.scratch() / remote.run, remote, over.is_set):
                return runner.make(remote.stage, remote.iteration, order.fingerprint, over.is_set)
        except RLoopError as error:
            if over.is_set():
                what, fix = "the run that asked for this no longer wants it", "start the run again: it goes on"
                raise NoLongerWanted(what, field=error.field, fix=fix) from error
            with contextlib.suppress(StoreError):
                remote.fail(error)
            raise


@contextlib.contextmanager
def _watching(remote: RemoteStage, lease: DelegatedLease) -> Iterator[threading.Event]:
    """An event that is set once the order is withdrawn or its run has ended; the block need not wait for it."""
    over, stop = threading.Event(), threading.Event()

    def watch() -> None:
        while not stop.wait(_PAUSE_SECONDS):
            with contextlib.suppress(StoreError):
                if lease.is_over() or not remote.is_wanted():
                    over.set()
                    return

    thread = threading.Thread(target=watch, name="order", daemon=True)
    thread.start()
    try:
        yield over
    finally:
        stop.set()
        thread.join()


@contextlib.contextmanager
def _alone(folder: Path, remote: RemoteStage, should_stop: Callable[[], bool]) -> Iterator[None]:
    """Hold this machine's work folder of the stage: an earlier try may need a moment until its processes have ended."""
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder / f"{remote.stage}-{remote.iteration}.lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        deadline = time.monotonic() + _LOCK_SECONDS
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if should_stop() or time.monotonic() > deadline:
                    what = "another process of this machine is at the same stage of the same run"
                    raise StageCrashed(what, field=str(folder), fix="wait for it, or stop it") from error
                time.sleep(_PAUSE_SECONDS)
        yield
    finally:
        os.close(handle)
