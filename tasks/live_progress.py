"""A stage under way in the UI: a text that is kept up to date, and lines in its task run's log."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import ArtifactUpdate
from prefect.logging import get_run_logger

from rloop_core.errors import RLoopError
from rloop_core.printable import without_secrets
from tasks.artifacts import Origin
from tasks.progress import StageProgress
from tasks.session import RunSession, watched_by
from tasks.stage_log import StageLog

UPDATE_SECONDS = 10.0
"""Least time between two updates of the text."""


class LiveText:
    """A stage's progress as an artifact that is made once and then changed, and the log of its process.

    Args:
        name: Of the artifact; None makes none, and only looks after the log.
        progress: What it shows.
        log: What the stage's process prints.
        origin: The task run that it belongs to.
    """

    def __init__(self, name: str | None, progress: StageProgress, log: StageLog, origin: Origin) -> None:
        self._name, self._progress, self._log, self._origin = name, progress, log, origin
        self._artifact: UUID | None = None
        self._sent_at = -UPDATE_SECONDS
        self._last = False

    def __str__(self) -> str:
        return f"progress of {self._name}"

    def finish(self) -> None:
        """The next update is the last."""
        self._last = True

    def tick(self, client: SyncPrefectClient) -> None:
        """Send what is new, when it is time."""
        if not self._last:
            self._log.tick()
        now = time.monotonic()
        if self._name is None:
            return
        if now - self._sent_at < UPDATE_SECONDS and not self._last:
            return
        self._sent_at = now
        text = without_secrets(self._progress.text())
        if self._artifact is None:
            made = self._origin.markdown(f"{self._name}-progress", text, f"progress of {self._name}")
            self._artifact = client.create_artifact(made).id
        else:
            client.update_artifact(self._artifact, ArtifactUpdate(data=text))


@contextmanager
def shown(run: RunSession, stage: str, iteration: int, name: str | None = None) -> Iterator[StageProgress]:
    """Show what this thread does for a stage: lines in its task run's log and, where there is a UI, its progress.

    Args:
        run: The open run.
        stage: The stage.
        iteration: Its iteration.
        name: Of the artifact with its progress; None makes none.
    """
    logger = get_run_logger()
    progress = StageProgress(run.config.name, (stage, iteration), lambda level, line: logger.log(level, "%s", line))
    log = StageLog(lambda level, line: logger.log(level, "log: %s", line))
    mine = threading.get_ident()

    def listen(of: str, at: int, event: dict[str, Any]) -> None:
        if threading.get_ident() != mine:
            return
        with suppress(Exception):  # what cannot be shown is no reason to end a stage
            if event.get("kind") == "log" and run.desk() is not None:
                log.follow(Path(event["path"]))
            progress.on_event(of, at, event)

    with watched_by(listen), _kept_up_to_date(run, name, progress, log):
        try:
            yield progress
        except RLoopError as error:
            progress.end(f"failed: {error}")
            raise
        except BaseException as error:
            progress.end(f"ended by {type(error).__name__}")
            raise


@contextmanager
def _kept_up_to_date(run: RunSession, name: str | None, progress: StageProgress, log: StageLog) -> Iterator[None]:
    desk = run.desk()
    if desk is None:
        yield
        return
    live = LiveText(name, progress, log, Origin.here())
    desk.add(live)
    try:
        yield
    finally:
        live.finish()
        desk.remove(live, str(live))
        desk.post("a log", lambda client: log.close())
