"""The progress of a stage under way: a text in the UI that is kept up to date, and lines in its task run's log."""

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import ArtifactUpdate
from prefect.logging import get_run_logger

from rloop_core.errors import RLoopError
from rloop_core.printable import printable_line, without_secrets
from rloop_core.results.progress import Key, LineWatcher, duration, event_text, position_text, stage_label
from rloop_core.results.tables import markdown_table
from rloop_core.runtime.events import Event
from tasks.artifacts import Origin, escape_markdown
from tasks.session import RunSession, watched_by
from tasks.stage_log import StageLog

LINE_SECONDS = 30.0
"""Least time between two lines on a stage's position in the log."""
UPDATE_SECONDS = 10.0
"""Least time between two updates of the text in the UI."""
_TABLE_ROWS = 10
_BAR_WIDTH = 24
_SPARKLINE_WIDTH = 60
_LEVELS = "▁▂▃▄▅▆▇█"

_COLUMNS: tuple[tuple[str, str, str], ...] = (
    ("reward", "reward", "{:+.3f}"),
    ("accuracy", "correct", "{:.1%}"),
    ("loss", "loss", "{:.4f}"),
    ("entropy", "entropy", "{:.3f}"),
    ("drift", "drift", "{:.3f}"),
    ("length_mean", "length", "{:.0f}"),
    ("truncated", "truncated", "{:.1%}"),
    ("tokens", "tokens", "{:,.0f}"),
    ("took", "seconds", "{:.1f}"),
)
"""Metric, title and format of each column; a column without values is left out."""


class StageProgress(LineWatcher):
    """Collects a stage's events, logs some of them, and describes the stage's progress in Markdown.

    Args:
        run: Name of the run.
        key: The stage and its iteration.
        say: Called with a logging level and a line.

    Attributes:
        losses: The loss of each update of fine-tuning.
    """

    def __init__(self, run: str, key: Key, say: Callable[[int, str], None]) -> None:
        super().__init__(lambda line: say(logging.INFO, printable_line(line)), LINE_SECONDS)
        self._run, self._key = run, key
        self._log = say
        self._lock = threading.Lock()  # the publisher's thread reads
        self._started = self._last_event = time.monotonic()
        self._since = datetime.now(UTC)
        self._rows: deque[tuple[float, Mapping[str, Any]]] = deque(maxlen=_TABLE_ROWS)
        self._curve: list[float] = []
        self._tokens = 0.0
        self._done = self._total = 0.0
        self._first: tuple[float, float] | None = None  # position and time from which the pace is measured
        self._status = "starting"
        self._ended = False
        self.losses: list[float] = []

    def stepped(self, key: Key, done: float, total: float, metrics: Mapping[str, Any]) -> None:
        """Record a step, and log it unless the last line is too recent."""
        super().stepped(key, done, total, metrics)
        if key != self._key:
            return
        with self._lock:
            now = time.monotonic()
            self._first = self._first or ((done, now) if done > 1 else (0.0, self._started))
            self._done, self._total = done, total
            self._status = position_text(key, done, total, metrics)
            if metrics:
                tokens = float(metrics.get("rollouts", 0)) * float(metrics.get("length_mean", 0))
                self._tokens += tokens
                self._rows.append((done, {**metrics, "tokens": tokens or None, "took": now - self._last_event}))
                self._curve.append(float(metrics.get("reward", metrics.get("loss", 0.0))))
            if "loss" in metrics and key[0] == "rft":
                self.losses.append(float(metrics["loss"]))
            self._last_event = now

    def line(self, key: Key, status: str, text: str, seconds: float | None) -> None:
        """Log a line; a note becomes a warning, because it may need action."""
        if status == "note":
            self._log(logging.WARNING, printable_line(f"{stage_label(*key)}: {text}"))
        else:
            super().line(key, status, text, seconds)
        if key == self._key or status == "note":
            self.set_status(event_text(status, text, seconds), ended=status != "note")

    def set_status(self, status: str, ended: bool) -> None:
        """Show a status; without a bar if the stage has ended."""
        with self._lock:
            self._status, self._ended = printable_line(status), ended

    def text(self) -> str:
        """Return the progress in Markdown."""
        with self._lock:
            title = f"**{escape_markdown(stage_label(*self._key))}** of **{escape_markdown(self._run)}**"
            lines = [f"{title}: {escape_markdown(self._status)}", ""]
            if self._total and not self._ended:
                lines += [f"`{_bar(self._done / self._total)}` {self._done / self._total:.0%}{self._time_left()}", ""]
            if len(self._curve) > 1:
                name = "reward" if self._key[0] == "explore" else "loss"
                ends = f"{self._curve[0]:+.3f} to {self._curve[-1]:+.3f}"
                lines += [f"{name} `{_sparkline(self._curve)}` {ends}", ""]
            lines += self._table()
            passed = time.monotonic() - self._started
            tokens = (
                f", {self._tokens:,.0f} tokens sampled, {self._tokens / passed:,.0f} a second" if self._tokens else ""
            )
            now = datetime.now(UTC)
            since = f"Since {self._since:%H:%M:%S}, {duration(passed)}{tokens}."
            return "\n".join([*lines, f"{since} As of {now:%Y-%m-%d %H:%M:%S} UTC."])

    def _time_left(self) -> str:
        """Return the estimated time left; empty until two steps have shown the pace."""
        if self._first is None or self._done <= self._first[0]:
            return ""
        pace = (self._last_event - self._first[1]) / (self._done - self._first[0])
        seconds = pace * (self._total - self._done) - (time.monotonic() - self._last_event)
        if seconds <= 0:
            return ""
        return f", about {duration(seconds)} left (until {datetime.now(UTC) + timedelta(seconds=seconds):%H:%M} UTC)"

    def _table(self) -> list[str]:
        """Return the last steps as a Markdown table; empty without metrics."""
        columns = [column for column in _COLUMNS if any(row.get(column[0]) is not None for _, row in self._rows)]
        if not columns:
            return []
        first = "RL step" if self._key[0] == "explore" else "update"
        rows = (
            [f"{done:.0f}", *(form.format(row[name]) if row.get(name) is not None else "" for name, _, form in columns)]
            for done, row in reversed(self._rows)
        )
        return [markdown_table((first, *(title for _, title, _ in columns)), rows, numbers=True), ""]


class ProgressArtifact:
    """Keeps the artifact of a stage's progress and the log of its process up to date.

    Args:
        name: The artifact's name; None makes no artifact.
        progress: What it shows.
        log: What the stage's process prints.
        origin: The task run that the artifact belongs to.
    """

    def __init__(self, name: str | None, progress: StageProgress, log: StageLog, origin: Origin) -> None:
        self._name, self._progress, self._log, self._origin = name, progress, log, origin
        self._artifact: UUID | None = None
        self._sent_at = -UPDATE_SECONDS
        self._last = False

    def __str__(self) -> str:
        return f"progress of {self._name}"

    def finish(self) -> None:
        """Make the next update the last."""
        self._last = True

    def update(self, client: SyncPrefectClient) -> None:
        """Forward the log, and send the text unless the last update is too recent."""
        if not self._last:
            self._log.forward()
        now = time.monotonic()
        if self._name is None or (now - self._sent_at < UPDATE_SECONDS and not self._last):
            return
        self._sent_at = now
        text = without_secrets(self._progress.text())
        if self._artifact is None:
            made = self._origin.markdown(f"{self._name}-progress", text, f"progress of {self._name}")
            self._artifact = client.create_artifact(made).id
        else:
            client.update_artifact(self._artifact, ArtifactUpdate(data=text))


@contextmanager
def live_progress(run: RunSession, stage: str, iteration: int, name: str | None = None) -> Iterator[StageProgress]:
    """Show the events of a stage that this thread runs: in its task run's log and, with a UI, as an artifact.

    Args:
        run: The open run.
        stage: The stage.
        iteration: Its iteration.
        name: The artifact's name; None makes no artifact.
    """
    logger = get_run_logger()
    progress = StageProgress(run.config.name, (stage, iteration), lambda level, line: logger.log(level, "%s", line))
    log = StageLog(lambda level, line: logger.log(level, "log: %s", line))
    publisher = run.publisher()
    thread = threading.get_ident()

    def on_event(event_stage: str, event_iteration: int, event: Event) -> None:
        if threading.get_ident() != thread:
            return
        with suppress(Exception):  # an error in showing an event must not end the stage
            if event["kind"] == "log" and publisher is not None:
                log.follow(Path(event["path"]))
            progress.on_event(event_stage, event_iteration, event)

    artifact = ProgressArtifact(name, progress, log, Origin.current()) if publisher else None
    if publisher and artifact:
        publisher.add(artifact)
    try:
        with watched_by(on_event):
            yield progress
    except BaseException as error:
        failed = f"failed: {error}" if isinstance(error, RLoopError) else f"ended by {type(error).__name__}"
        progress.set_status(failed, ended=True)
        raise
    finally:
        if publisher and artifact:
            artifact.finish()
            publisher.remove(artifact)
            publisher.submit("a log", lambda client: log.close())


def _bar(share: float) -> str:
    full = round(max(0.0, min(1.0, share)) * _BAR_WIDTH)
    return "█" * full + "░" * (_BAR_WIDTH - full)


def _sparkline(values: list[float]) -> str:
    """Return the last finite values as bars between their minimum and maximum."""
    values = [value for value in values if math.isfinite(value)][-_SPARKLINE_WIDTH:]
    if not values:
        return ""
    low, span = min(values), (max(values) - min(values)) or 1.0
    return "".join(_LEVELS[round((value - low) / span * (len(_LEVELS) - 1))] for value in values)
