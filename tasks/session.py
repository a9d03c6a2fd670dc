"""The run that the flows of this process work on: its store, its lease, its runner, and whoever watches it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rloop_core.config import Config
from rloop_core.stages.job import StageOutcome
from rloop_core.stages.runner import StageRunner
from rloop_core.store import Lease, Manifest, Store, manifest_key
from tasks.audience import is_watched

if TYPE_CHECKING:
    from tasks.figures import Figures
    from tasks.ui_publisher import Desk

Listener = Callable[[str, int, dict[str, Any]], None]

_listeners: list[Listener] = []
_LAST_WORDS_SECONDS = 30.0
"""How long the end of a run waits for what is still to be shown."""
_LAST_WORDS_IN_HASTE_SECONDS = 5.0

_open: dict[tuple[str, str], RunSession] = {}
_lock = threading.RLock()  # who is told of an event may ask for the desk


class RunSession:
    """An open run.

    Args:
        config: Its config.
        runner: Makes artifacts exist.

    Attributes:
        manifests: Of the artifacts that this session has seen to, by (iteration, stage).
        pages: Of the figures that this session has made, by name: where the UI has them.
    """

    def __init__(self, config: Config, runner: StageRunner) -> None:
        self.config = config
        self.runner = runner
        self.manifests: dict[tuple[int, str], Manifest] = {}
        self.pages: dict[str, str] = {}
        self._stop = threading.Event()
        self._desk: Desk | None = None
        self._figures: Figures | None = None

    @property
    def stopping(self) -> bool:
        """Whether stages under way must end."""
        return self._stop.is_set()

    def evaluates(self, iteration: int) -> bool:
        """Whether what an iteration ended with (-1: theta_0) is to be evaluated."""
        return bool(self.config.evaluate.sets) and (iteration >= 0 or self.config.evaluate.base)

    def desk(self) -> Desk | None:
        """Who sends what the UI is to show; None where nobody could look at it."""
        with _lock:
            if self._desk is None and is_watched():
                from prefect.logging import get_run_logger

                from tasks.ui_publisher import Desk

                self._desk = Desk(get_run_logger().warning)
        return self._desk

    def figures(self) -> Figures:
        """Who draws what the stages leave; for the desk's thread alone."""
        if self._figures is None:
            from tasks.figures import Figures

            self._figures = Figures(self)
        return self._figures

    def close(self, hasty: bool) -> None:
        """Wait a moment for what is still to be shown; a shorter one for whoever was told to end."""
        if self._desk is not None:
            self._desk.close(_LAST_WORDS_IN_HASTE_SECONDS if hasty else _LAST_WORDS_SECONDS)

    def stop(self) -> None:
        """End the stages under way, in whatever thread."""
        self._stop.set()


@contextmanager
def open_run(config: Config) -> Iterator[RunSession]:
    """The session of a run; flows within flows share it, and its lease.

    Raises:
        LeaseError: Another process writes this run.
    """
    key = (config.placement.store, config.name)
    if key in _open:
        with _stopping_on_error(_open[key]) as session:
            yield session
        return

    def tell(line: str) -> None:
        announce("run", 0, {"kind": "note", "note": line})

    # A store that never answered is more likely misspelt than gone: only one that was there is waited for.
    Store(config.placement.store).exists(manifest_key(config.name, 0, "explore"))
    store = Store(config.placement.store, config.placement.store_patience_seconds, tell)
    with Lease(store, config.name, tell=tell) as lease:
        session = RunSession(config, StageRunner(config, store, lease, announce, launch=_launch, in_pool=_in_pool))
        _open[key] = session
        hasty = False
        try:
            with _stopping_on_error(session):
                yield session
        except BaseException as error:
            hasty = not isinstance(error, Exception)
            raise
        finally:
            del _open[key]
            session.close(hasty)
            if config.placement.machines > 1:
                from rloop_core.runtime.cluster import leave_cluster

                leave_cluster()


def _launch(*given: Any, **named: Any) -> StageOutcome:
    """A stage in a process tree of its own, when it is its turn; Prefect is loaded by then."""
    from tasks.gpu_concurrency import run_in_turn

    return run_in_turn(*given, **named)


def _in_pool(*given: Any, **named: Any) -> bool:
    """A stage on a worker of another pool; Prefect is loaded by then."""
    from tasks.remote import compute_in_pool

    return compute_in_pool(*given, **named)


@contextmanager
def _stopping_on_error(session: RunSession) -> Iterator[RunSession]:
    """An error, a cancellation or Ctrl-C in one stage ends the stages beside it."""
    try:
        yield session
    except BaseException:
        session.stop()
        raise


@contextmanager
def watched_by(listener: Listener) -> Iterator[None]:
    """Send every event of this process's runs to a listener too."""
    with _lock:
        _listeners.append(listener)
    try:
        yield
    finally:
        with _lock:
            _listeners.remove(listener)


def announce(stage: str, iteration: int, event: dict[str, Any]) -> None:
    """Tell everybody who watches this process's runs of an event."""
    with _lock:
        for listener in _listeners:
            listener(stage, iteration, event)
