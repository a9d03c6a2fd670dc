"""The progress of a stage under way: lines in its task run's log and, with a UI, a progress artifact."""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect.logging import get_run_logger

from rloop_core.errors import RLoopError
from rloop_core.printable import printable_line
from rloop_core.results.progress import Key, LineWatcher, event_text, position_text, stage_label
from rloop_core.runtime.events import Event
from tasks.artifacts import publish
from tasks.session import has_ui, watched_by

LINE_SECONDS = 30.0
"""Least time between two lines on a stage's position in the log."""
UPDATE_SECONDS = 10.0
"""Least time between two updates of the artifact."""
_AFTER_FAILURE_SECONDS = 60.0
_TAIL_LINES, _TAIL_BYTES = 20, 1 << 14

Show = Callable[[float, str, UUID | None], UUID | None]


class StageProgress(LineWatcher):
    """Logs a stage's events, and shows its position.

    Args:
        key: The stage and its iteration.
        log: Called with a logging level and a line.
        show: Called with percent, text and the artifact so far; returns the artifact, None if it cannot be shown.
    """

    def __init__(self, key: Key, log: Callable[[int, str], None], show: Show | None = None) -> None:
        super().__init__(lambda line: log(logging.INFO, printable_line(line)), LINE_SECONDS)
        self._key, self._log, self._show = key, log, show
        self._artifact: UUID | None = None
        self._percent = 0.0
        self._next_update = 0.0
        self._log_file: Path | None = None

    def on_event(self, stage: str, iteration: int, event: Event) -> None:
        """Take an event, also that a stage's process writes to a log."""
        if event["kind"] == "log":
            self._log_file = Path(event["path"])
            self.say(f"{stage_label(stage, iteration)}: what it prints is in {self._log_file} while it runs")
        super().on_event(stage, iteration, event)

    def stepped(self, key: Key, done: float, total: float, metrics: Mapping[str, Any]) -> None:
        """Log and show the position, unless the last one is too recent."""
        super().stepped(key, done, total, metrics)
        if key == self._key and total:
            self._percent = min(100.0, 100 * done / total)
            self._update(position_text(key, done, total, metrics))

    def line(self, key: Key, status: str, text: str, seconds: float | None) -> None:
        """Log a line and show it; a note becomes a warning, because it may need action."""
        if status == "note":
            self._log(logging.WARNING, printable_line(f"{stage_label(*key)}: {text}"))
            return
        super().line(key, status, text, seconds)
        if key == self._key and status == "done":
            self._percent = 100.0
            self._update(event_text(status, text, seconds), last=True)

    def fail(self, error: Exception) -> None:
        """Show why the stage failed, and log the last lines that its process printed."""
        if self._log_file is not None:
            with suppress(OSError), open(self._log_file, "rb") as stream:
                stream.seek(max(0, stream.seek(0, 2) - _TAIL_BYTES))
                for line in stream.read().decode(errors="replace").splitlines()[-_TAIL_LINES:]:
                    self.say(f"log: {line}")
        what = f"failed: {error}" if isinstance(error, RLoopError) else f"ended by {type(error).__name__}"
        self._update(what, last=True)

    def _update(self, text: str, last: bool = False) -> None:
        now = time.monotonic()
        if self._show is None or (now < self._next_update and not last):
            return
        label = stage_label(*self._key)
        shown = self._show(self._percent, f"{label}: {printable_line(text)}", self._artifact)
        self._artifact = shown or self._artifact
        self._next_update = now + (UPDATE_SECONDS if shown else _AFTER_FAILURE_SECONDS)


@contextmanager
def live_progress(stage: str, iteration: int, name: str | None = None) -> Iterator[None]:
    """Show the events of a stage that this thread runs: in its task run's log and, with a UI, as an artifact.

    Args:
        stage: The stage.
        iteration: Its iteration.
        name: The prefix of the artifact's name; None makes no artifact.
    """

    def show(percent: float, text: str, known: UUID | None) -> UUID | None:
        return publish("progress", f"{name}-progress", percent, text, known)

    progress = StageProgress((stage, iteration), get_run_logger().log, show if name and has_ui() else None)
    thread = threading.get_ident()

    def on_event(event_stage: str, event_iteration: int, event: Event) -> None:
        if threading.get_ident() == thread:
            with suppress(Exception):  # an error in showing an event must not end the stage
                progress.on_event(event_stage, event_iteration, event)

    try:
        with watched_by(on_event):
            yield
    except Exception as error:
        progress.fail(error)
        raise
