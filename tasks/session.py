"""The run that the flows of this process work on: its lease, its runner, its listeners, and its UI publisher."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rloop_core.config import Config
from rloop_core.runtime import events
from rloop_core.runtime.events import Event, OnEvent, OnRunEvent
from rloop_core.stages.job import StageJob, StageOutcome
from rloop_core.stages.on_machines import run_stage
from rloop_core.stages.runner import StageRunner
from rloop_core.store import Lease, Manifest, Store, manifest_key

if TYPE_CHECKING:
    from tasks.figures import Figures
    from tasks.ui_publisher import UIPublisher

_CLOSE_SECONDS = 30.0
"""Longest wait for the UI publisher at the end of a run."""
_HASTY_CLOSE_SECONDS = 5.0

_listeners: list[OnRunEvent] = []
_open: dict[tuple[str, str], RunSession] = {}
_lock = threading.RLock()  # a listener may ask for the publisher
_has_ui = True


class RunSession:
    """An open run.

    Args:
        config: Its config.
        runner: Makes its artifacts exist.

    Attributes:
        manifests: The artifacts of this session, by (iteration, stage).
        pages: Paths in the UI of the figures of this session, by name.
        stop: Ends the stages under way, in all threads, once it is set.
    """

    def __init__(self, config: Config, runner: StageRunner) -> None:
        self.config = config
        self.runner = runner
        self.manifests: dict[tuple[int, str], Manifest] = {}
        self.pages: dict[str, str] = {}
        self.stop = threading.Event()
        self._publisher: UIPublisher | None = None
        self._figures: Figures | None = None

    def evaluates(self, iteration: int) -> bool:
        """Return True if the policy at the end of an iteration (-1: theta_0) is to be evaluated."""
        return bool(self.config.evaluate.sets) and (iteration >= 0 or self.config.evaluate.base)

    def publisher(self) -> UIPublisher | None:
        """Return the UI publisher, or None without a UI."""
        with _lock:
            if self._publisher is None and has_ui():
                from prefect.logging import get_run_logger

                from tasks.ui_publisher import UIPublisher

                self._publisher = UIPublisher(get_run_logger().warning)
        return self._publisher

    def figures(self) -> Figures:
        """Return the run's figures, for the publisher's thread only."""
        if self._figures is None:
            from tasks.figures import Figures

            cache = self.runner.scratch() / "cache"
            self._figures = Figures(self.config, self.runner.store, cache, self.manifests)
        return self._figures

    def close(self, hasty: bool) -> None:
        """Wait for the publisher to send what is left; `hasty` after an interruption."""
        if self._publisher is not None:
            self._publisher.close(_HASTY_CLOSE_SECONDS if hasty else _CLOSE_SECONDS)


@contextmanager
def open_run(config: Config) -> Iterator[RunSession]:
    """Open a run and hold its lease; nested flows share the session.

    Raises:
        LeaseError: Another process writes this run.
    """
    key = (config.placement.store, config.name)
    if key in _open:
        with _stopping_on_error(_open[key]) as session:
            yield session
        return

    def note(line: str) -> None:
        announce("run", 0, events.note(line))

    # A store that does not answer the first request is an error at once: its name is probably misspelt. Later outages
    # are waited for.
    Store(config.placement.store).exists(manifest_key(config.name, 0, "explore"))
    store = Store(config.placement.store, config.placement.store_patience_seconds, note)
    with Lease(store, config.name, note=note) as lease:
        session = RunSession(config, StageRunner(config, store, lease, announce, launch=_launch))
        _open[key] = session
        hasty = False
        try:
            with _stopping_on_error(session):
                yield session
            session.runner.ensure_kept()
        except BaseException as error:
            hasty = not isinstance(error, Exception)
            raise
        finally:
            del _open[key]
            session.close(hasty)
            if config.placement.machines > 1:
                from rloop_core.runtime.cluster import leave_cluster

                leave_cluster()


def _launch(job: StageJob, on_event: OnEvent, **limits: Any) -> StageOutcome:
    """Run a stage on this machine. This imports late, because a run opens before Prefect is loaded."""
    if not has_ui():  # the embedded API has no concurrency limits
        return run_stage(job, on_event, **limits)
    from tasks.gpu_concurrency import run_within_limit

    return run_within_limit(job, on_event, **limits)


@contextmanager
def _stopping_on_error(session: RunSession) -> Iterator[RunSession]:
    """Stop the concurrent stages on an error, a cancellation or Ctrl-C."""
    try:
        yield session
    except BaseException:
        session.stop.set()
        raise


@contextmanager
def watched_by(listener: OnRunEvent) -> Iterator[None]:
    """Send every event of this process's runs to a listener too."""
    with _lock:
        _listeners.append(listener)
    try:
        yield
    finally:
        with _lock:
            _listeners.remove(listener)


def announce(stage: str, iteration: int, event: Event) -> None:
    """Send an event to all listeners."""
    with _lock:
        for listener in _listeners:
            listener(stage, iteration, event)


def has_ui() -> bool:
    """Return False with the embedded Prefect API, which has no UI and ends with its command."""
    return _has_ui


@contextmanager
def without_ui() -> Iterator[None]:
    """Send nothing to a UI in this block: no progress, figures, tags or log lines."""
    global _has_ui
    before, _has_ui = _has_ui, False
    try:
        yield
    finally:
        _has_ui = before
