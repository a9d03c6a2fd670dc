"""How far a stage is, in words: a text that can be asked for at any time, and a few lines for a log."""

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from rloop_core.cli.formatting import duration
from rloop_core.cli.live import Key, LineWatcher, label, position_in_words
from rloop_core.printable import printable_line
from tasks.artifacts import as_text

LINE_SECONDS = 30.0
"""Least time between two lines on progress in the log."""
_SHOWN_STEPS = 10
_WIDTH = 24
_SPARKS = 60
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


class StageProgress(LineWatcher):
    """Takes a stage's events and shows how far it is.

    Args:
        run: Name of the run.
        key: The stage and its iteration.
        say: Takes a logging level and a line.
    """

    def __init__(self, run: str, key: Key, say: Callable[[int, str], None]) -> None:
        super().__init__(lambda line: say(logging.INFO, printable_line(line)), LINE_SECONDS)
        self._run, self._key = run, key
        self._log_line = say
        self._lock = threading.Lock()
        self._started = self._heard = time.monotonic()
        self._since = datetime.now(UTC)
        self._rows: deque[tuple[float, Mapping[str, Any]]] = deque(maxlen=_SHOWN_STEPS)
        self._curve: list[float] = []
        self._tokens = 0.0
        self._done = self._total = 0.0
        self._first: tuple[float, float] | None = None
        self._words = "starting"
        self._ended = False
        self.losses: list[float] = []

    def stepped(self, key: Key, done: float, total: float, metrics: Mapping[str, Any]) -> None:
        """Remember the step, and say it when it is time."""
        super().stepped(key, done, total, metrics)
        if key != self._key:
            return
        with self._lock:
            now = time.monotonic()
            self._first = self._first or ((done, now) if done > 1 else (0.0, self._started))
            self._done, self._total = done, total
            self._words = position_in_words(key, done, total, metrics)
            if metrics:
                tokens = float(metrics.get("rollouts", 0)) * float(metrics.get("length_mean", 0))
                self._tokens += tokens
                self._rows.append((done, {**metrics, "tokens": tokens or None, "took": now - self._heard}))
                self._curve.append(float(metrics.get("reward", metrics.get("loss", 0.0))))
            if "loss" in metrics and key[0] == "rft":
                self.losses.append(float(metrics["loss"]))
            self._heard = now

    def line(self, key: Key, word: str, text: str, seconds: float | None) -> None:
        """Say it: a note as a warning, for somebody may have to do something."""
        if word == "note":
            self._log_line(logging.WARNING, printable_line(f"{label(key)}: {text}"))
        else:
            super().line(key, word, text, seconds)
        if key == self._key or word == "note":
            took = f" in {duration(seconds)}" if seconds is not None else ""
            self.end(f"{word}{took}{': ' if text else ''}{text}", ended=word != "note")

    def end(self, words: str, ended: bool = True) -> None:
        """Show these words from now on; after the last ones nothing is left to wait for."""
        with self._lock:
            self._words, self._ended = printable_line(words), ended

    def text(self) -> str:
        """How far it is, in Markdown."""
        with self._lock:
            lines = [f"**{as_text(label(self._key))}** of **{as_text(self._run)}**: {as_text(self._words)}", ""]
            if self._total and not self._ended:
                lines += [f"`{_bar(self._done / self._total)}` {self._done / self._total:.0%}{self._left()}", ""]
            if len(self._curve) > 1:
                name = "reward" if self._key[0] == "explore" else "loss"
                ends = f"{self._curve[0]:+.3f} to {self._curve[-1]:+.3f}"
                lines += [f"{name} `{_sparkline(self._curve)}` {ends}", ""]
            lines += self._table()
            passed = time.monotonic() - self._started
            spent = (
                f", {self._tokens:,.0f} tokens sampled, {self._tokens / passed:,.0f} a second" if self._tokens else ""
            )
            now = datetime.now(UTC)
            lines.append(f"Since {self._since:%H:%M:%S}, {duration(passed)}{spent}. As of {now:%Y-%m-%d %H:%M:%S} UTC.")
            return "\n".join(lines)

    def _left(self) -> str:
        """When it will be done, once two steps have shown how long one takes."""
        if self._first is None or self._done <= self._first[0]:
            return ""
        pace = (self._heard - self._first[1]) / (self._done - self._first[0])
        seconds = pace * (self._total - self._done) - (time.monotonic() - self._heard)
        if seconds <= 0:
            return ""
        return f", about {duration(seconds)} left (until {datetime.now(UTC) + timedelta(seconds=seconds):%H:%M} UTC)"

    def _table(self) -> list[str]:
        shown = [column for column in _COLUMNS if any(row.get(column[0]) is not None for _, row in self._rows)]
        if not shown:
            return []
        first = "RL step" if self._key[0] == "explore" else "update"
        lines = [f"| {first} | {' | '.join(title for _, title, _ in shown)} |", f"|{'---:|' * (len(shown) + 1)}"]
        for done, row in reversed(self._rows):
            cells = [form.format(row[name]) if row.get(name) is not None else "" for name, _, form in shown]
            lines.append(f"| {done:.0f} | {' | '.join(cells)} |")
        return [*lines, ""]


def _bar(share: float) -> str:
    full = round(max(0.0, min(1.0, share)) * _WIDTH)
    return "█" * full + "░" * (_WIDTH - full)


def _sparkline(values: list[float]) -> str:
    """The last values as bars between their least and their greatest."""
    values = [value for value in values if math.isfinite(value)][-_SPARKS:]
    if not values:
        return ""
    low, span = min(values), (max(values) - min(values)) or 1.0
    return "".join(_LEVELS[round((value - low) / span * (len(_LEVELS) - 1))] for value in values)
