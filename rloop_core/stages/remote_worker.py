"""Compute a stage on a worker for the run that requested it, and publish the artifact under the run's lease."""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from rloop_core.config import make_config
from rloop_core.errors import RLoopError, StageCrashed, StageError, StoreError
from rloop_core.runtime import events
from rloop_core.runtime.events import OnRunEvent
from rloop_core.stages.on_machines import run_stage
from rloop_core.stages.remote import RemoteRequest, RemoteStage
from rloop_core.stages.runner import Launcher, StageRunner
from rloop_core.store import DelegatedLease, Manifest, Store

_PAUSE_SECONDS = 1.0
_BRIEF_SECONDS = 10.0
_LOCK_SECONDS = 60.0


class NoLongerWanted(StageError):  # noqa: N818
    """The run has ended, or has withdrawn the request; nothing was published."""


def compute_remote_stage(
    remote: RemoteStage,
    request: RemoteRequest,
    on_event: OnRunEvent = lambda stage, iteration, event: None,
    launch: Launcher = run_stage,
) -> Manifest:
    """Compute and publish the artifact of a request that `remote.take` returned; the rest is as for `StageRunner`.

    Raises:
        NoLongerWanted: The run has ended, or has withdrawn the request; the stage's processes are ended.
        RLoopError: The stage failed; its error was left for the run.
    """
    config = make_config(request.config)
    note = events.as_notes(partial(on_event, remote.stage, remote.iteration))
    store = Store(remote.store.uri, config.placement.store_patience_seconds, note)
    lease = DelegatedLease(store, remote.run, request.token)
    runner = StageRunner(config, store, lease, on_event, launch)
    with _watching(remote.hasty(_BRIEF_SECONDS), lease) as is_over:
        try:
            with _locked(runner.scratch() / remote.run, remote, is_over.is_set):
                return runner.compute_requested(remote.stage, remote.iteration, request, is_over.is_set)
        except RLoopError as error:
            if is_over.is_set():
                what = "the run that requested this no longer wants it"
                raise NoLongerWanted(what, field=error.field, fix="start the run again: it goes on") from error
            with contextlib.suppress(StoreError):
                remote.fail(error)
            raise


@contextlib.contextmanager
def _watching(remote: RemoteStage, lease: DelegatedLease) -> Iterator[threading.Event]:
    """Yield an event that a thread sets once the request is withdrawn or its run has ended."""
    is_over, stop = threading.Event(), threading.Event()

    def watch() -> None:
        while not stop.wait(_PAUSE_SECONDS):
            with contextlib.suppress(StoreError):
                if lease.is_over() or not remote.is_wanted():
                    is_over.set()
                    return

    thread = threading.Thread(target=watch, name="remote-request", daemon=True)
    thread.start()
    try:
        yield is_over
    finally:
        stop.set()
        thread.join()


@contextlib.contextmanager
def _locked(folder: Path, remote: RemoteStage, should_stop: Callable[[], bool]) -> Iterator[None]:
    """Lock this machine's work folder of the stage: the processes of an earlier attempt may need a moment to end."""
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
                    what = "another process of this machine computes the same stage of the same run"
                    raise StageCrashed(what, field=str(folder), fix="wait for it, or stop it") from error
                time.sleep(_PAUSE_SECONDS)
        yield
    finally:
        os.close(handle)
