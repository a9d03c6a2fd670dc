"""The run that the flows of this process work on: its store, its lease, its runner, and whoever watches it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rloop_core.config import Config
from rloop_core.stages.runner import StageRunner
from rloop_core.store import Lease, Store, manifest_key

Listener = Callable[[str, int, dict[str, Any]], None]

_listeners: list[Listener] = []
_open: dict[tuple[str, str], RunSession] = {}
_lock = threading.Lock()


class RunSession:
    """An open run.

    Args:
        config: Its config.
        runner: Makes artifacts exist.
    """

    def __init__(self, config: Config, runner: StageRunner) -> None:
        self.config = config
        self.runner = runner
        self._stop = threading.Event()

    @property
    def stopping(self) -> bool:
        """Whether stages under way must end."""
        return self._stop.is_set()

    def evaluates(self, iteration: int) -> bool:
        """Whether what an iteration ended with (-1: theta_0) is to be evaluated."""
        return bool(self.config.evaluate.sets) and (iteration >= 0 or self.config.evaluate.base)

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
        _announce("run", 0, {"kind": "note", "note": line})

    # A store that never answered is more likely misspelt than gone: only one that was there is waited for.
    Store(config.placement.store).exists(manifest_key(config.name, 0, "explore"))
    store = Store(config.placement.store, config.placement.store_patience_seconds, tell)
    with Lease(store, config.name, tell=tell) as lease:
        session = RunSession(config, StageRunner(config, store, lease, _announce))
        _open[key] = session
        try:
            with _stopping_on_error(session):
                yield session
        finally:
            del _open[key]


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
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def _announce(stage: str, iteration: int, event: dict[str, Any]) -> None:
    with _lock:
        for listener in _listeners:
            listener(stage, iteration, event)
