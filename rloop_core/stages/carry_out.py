"""An errand as its worker sees it: compute, publish under the run's lease, and say how far it is."""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rloop_core.config import make_config
from rloop_core.errors import RLoopError, StageCrashed, StageError, StoreError, error_as_data
from rloop_core.stages.errand import Errand, Report
from rloop_core.stages.process import run_in_process
from rloop_core.stages.runner import Launcher, StageRunner
from rloop_core.store import BorrowedLease, Manifest, Store

Event = dict[str, Any]

BEAT_SECONDS = 5.0
_PAUSE_SECONDS = 1.0
_BRIEF_SECONDS = 10.0
_KEPT_EVENTS = 200
_FORWARDED = ("step", "note")  # a log is read where it is
_LOCK_SECONDS = 60.0


class NoLongerWanted(StageError):  # noqa: N818 - says what is the case
    """The run that asked is over, or has asked another; nothing was published."""


def carry_out(errand: Errand, listen: Callable[[Event], None], launch: Launcher = run_in_process) -> Manifest:
    """Make the artifact that an errand asks for.

    Args:
        errand: The errand.
        listen: Called with every event of the stage.
        launch: Runs a job and returns its outcome, as `StageRunner` has it.

    Raises:
        NoLongerWanted: The run that asked has ended, or no longer wants it; the stage's processes are ended.
        RLoopError: The stage failed, and its run was told.
    """
    order = errand.take()
    config = make_config(order.config)
    patience = config.placement.store_patience_seconds
    store = Store(errand.store.uri, patience, lambda line: reporter.add({"kind": "note", "note": line}))
    lease = BorrowedLease(store, errand.run, order.token)
    reporter = _Reporter(errand, lease)

    def tell(stage: str, iteration: int, event: Event) -> None:
        listen(event)
        reporter.add(event)

    runner = StageRunner(config, store, lease, tell, launch)
    try:
        with reporter.reporting(), _alone(runner.scratch() / errand.run, errand, lambda: reporter.is_over):
            return runner.make(errand.stage, errand.iteration, order.fingerprint, lambda: reporter.is_over)
    except StageError as error:
        if reporter.is_over:
            what, fix = "the run that asked for this no longer wants it", "start the run again: it goes on"
            raise NoLongerWanted(what, field=error.field, fix=fix) from error
        raise


class _Reporter:
    """Says every few seconds that somebody is at it, and notices that nobody wants it any more.

    Args:
        errand: The errand.
        lease: Of the run that asked.
    """

    def __init__(self, errand: Errand, lease: BorrowedLease) -> None:
        self._errand = errand.hasty(_BRIEF_SECONDS)
        self._patient = errand
        self._lease = lease
        self._events: deque[tuple[int, Event]] = deque(maxlen=_KEPT_EVENTS)
        self._count = 0
        self._beats = 0
        self._fresh = False
        self._stop = threading.Event()
        self._over = threading.Event()
        self._lock = threading.Lock()

    @property
    def is_over(self) -> bool:
        """Whether the errand was withdrawn, or its run has ended."""
        return self._over.is_set()

    def add(self, event: Event) -> None:
        """Have the run told of an event."""
        if event.get("kind") in _FORWARDED:
            with self._lock:
                self._events.append((self._count, event))
                self._count += 1
                self._fresh = True

    @contextlib.contextmanager
    def reporting(self) -> Iterator[None]:
        """Report while the block runs, and how it ended when it is left."""
        thread = threading.Thread(target=self._beat, name="errand", daemon=True)
        thread.start()
        error: dict[str, Any] | None = None
        try:
            yield
        except RLoopError as ours:
            error = error_as_data(ours)
            raise
        except BaseException as other:
            # What ends this process from outside says nothing about the stage: another try may help.
            error = error_as_data(StageCrashed(f"{type(other).__name__}: {other}"))
            raise
        finally:
            self._stop.set()
            thread.join()
            if not self.is_over:
                with contextlib.suppress(StoreError):
                    self._patient.write(self._report(ended=True, error=error))

    def _beat(self) -> None:
        spoke = 0.0
        while not self._stop.wait(_PAUSE_SECONDS):
            with contextlib.suppress(StoreError):
                if self._lease.is_over() or not self._errand.is_wanted():
                    self._over.set()
                    return
                if self._fresh or time.monotonic() - spoke > BEAT_SECONDS:
                    spoke = time.monotonic()
                    self._errand.write(self._report())

    def _report(self, ended: bool = False, error: dict[str, Any] | None = None) -> Report:
        with self._lock:
            self._beats += 1
            self._fresh = False
            return Report(self._beats, list(self._events), ended, error)


@contextlib.contextmanager
def _alone(folder: Path, errand: Errand, should_stop: Callable[[], bool]) -> Iterator[None]:
    """Hold this machine's work folder of the stage: an earlier try may need a moment until its processes have ended."""
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder / f"{errand.stage}-{errand.iteration}.lock", os.O_RDWR | os.O_CREAT, 0o644)
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
