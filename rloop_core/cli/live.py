"""A run while it runs: bars on a terminal, throttled lines anywhere else."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rloop_core.cli.formatting import duration, in_words, stage_name, step_in_words
from rloop_core.stages.job import STAGES

Event = Mapping[str, Any]
Key = tuple[str, int]
_LINE_SECONDS = 10.0


class Watcher:
    """Takes the flow's events; subclasses show them.

    Attributes:
        ran: Stages that were computed, (stage, iteration), in order; those found in the store are not among them.
    """

    def __init__(self) -> None:
        self.ran: dict[Key, None] = {}

    def on_event(self, stage: str, iteration: int, event: Mapping[str, Any]) -> None:
        """One event: `start`, `step`, `done`, `cached` or `note`. May be called from any thread, never from two."""
        key = (stage, iteration)
        kind = event.get("kind")
        if kind == "start":
            if stage in STAGES:
                self.ran[key] = None
            self.started(key, str(event.get("note", "")))
        elif kind == "step":
            self.stepped(key, float(event["done"]), float(event["total"]), event.get("metrics") or {})
        elif kind == "done":
            self.line(key, "done", in_words(stage, event.get("metrics") or {}), event.get("seconds"))
        elif kind == "cached":
            self.line(key, "Cached", str(event.get("note", "")), None)
        elif kind == "note":
            self.line(key, "note", str(event.get("note", "")), None)

    def started(self, key: Key, note: str) -> None:
        """A stage begins."""

    def stepped(self, key: Key, done: float, total: float, metrics: Mapping[str, Any]) -> None:
        """A stage has come so far."""

    def line(self, key: Key, word: str, text: str, seconds: float | None) -> None:
        """Something that stays on the screen."""


def label(key: Key) -> str:
    """What a stage is called: "explore 0", "evaluate theta_1"."""
    return key[0] if key[0] in ("run", "preflight") else stage_name(*key)


class LineWatcher(Watcher):
    """One line when a stage starts and ends, and between them at most one every few seconds.

    Args:
        say: Takes a line.
        seconds: Least time between two lines on progress.
    """

    def __init__(self, say: Callable[[str], None], seconds: float = _LINE_SECONDS) -> None:
        super().__init__()
        self.say = say
        self._seconds = seconds
        self._spoke: dict[Key, float] = {}

    def started(self, key: Key, note: str) -> None:
        """Say that it starts, and why."""
        self._spoke[key] = time.monotonic()
        self.say(f"{label(key)}: started ({note})")

    def stepped(self, key: Key, done: float, total: float, metrics: Mapping[str, Any]) -> None:
        """Say how far it is, when it is time."""
        now = time.monotonic()
        if now - self._spoke.get(key, 0.0) < self._seconds:
            return
        self._spoke[key] = now
        self.say(f"{label(key)}: {position_in_words(key, done, total, metrics)}")

    def line(self, key: Key, word: str, text: str, seconds: float | None) -> None:
        """Print it."""
        took = f" in {duration(seconds)}" if seconds is not None else ""
        self.say(f"{label(key)}: {word}{took}{': ' if text else ''}{text}")


class PlainWatcher(LineWatcher):
    """Lines on a console that is no terminal."""

    def __init__(self, console: Any) -> None:
        from rich.text import Text

        super().__init__(lambda line: console.print(Text(line)))


class BarWatcher(Watcher):
    """A bar for each stage under way; a finished stage leaves one line."""

    def __init__(self, progress: Any) -> None:
        super().__init__()
        self._progress = progress
        self._tasks: dict[Key, Any] = {}

    def started(self, key: Key, note: str) -> None:
        """Open a bar."""
        from rich.markup import escape

        if key not in self._tasks:
            self._tasks[key] = self._progress.add_task(escape(label(key)), total=None, words="")

    def stepped(self, key: Key, done: float, total: float, metrics: Mapping[str, Any]) -> None:
        """Move the bar."""
        from rich.markup import escape

        if key in self._tasks:
            words = position_in_words(key, done, total, metrics)
            self._progress.update(self._tasks[key], completed=done, total=total, words=escape(words))

    def line(self, key: Key, word: str, text: str, seconds: float | None) -> None:
        """Print above the bars; a finished stage's bar goes."""
        from rich.text import Text

        if word == "done" and key in self._tasks:
            self._progress.remove_task(self._tasks.pop(key))
        mark, style = {"done": ("✓", "green"), "Cached": ("=", "cyan")}.get(word, ("!", "yellow"))
        took = f"{duration(seconds):>7}" if seconds is not None else f"{word:>7}"
        name = f" {label(key):<17} "
        self._progress.console.print(Text.assemble((mark, style), name, (took, "dim"), f"  {text}"))


def position_in_words(key: Key, done: float, total: float, metrics: Mapping[str, Any]) -> str:
    """How far a stage is, and the figures of its last step: "RL step 3/20, reward +0.50, accuracy 75%"."""
    place = f"{done / total:.0%}" if total else ""
    if key[0] == "explore":
        place = f"RL step {done:.0f}/{total:.0f}"
    return ", ".join(part for part in (place, step_in_words(metrics)) if part)


@contextmanager
def watch(console: Any, *, quiet: bool = False) -> Iterator[Watcher]:
    """The watcher that fits where the output goes."""
    if quiet:
        yield Watcher()
    elif not console.is_terminal:
        yield PlainWatcher(console)
    else:
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        columns = (
            SpinnerColumn(),
            TextColumn("{task.description:<17}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[words]}"),
            TimeElapsedColumn(),
            TextColumn("[dim]left"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=console, transient=True) as progress:
            yield BarWatcher(progress)
