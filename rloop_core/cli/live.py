"""The progress of a run on the screen: bars on a terminal, a line now and then anywhere else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rloop_core.cli.output import bars
from rloop_core.results.progress import Key, LineWatcher, Watcher, duration, position_text, stage_label


class BarWatcher(Watcher):
    """Shows a bar for each stage under way; a finished stage leaves one line."""

    def __init__(self, progress: Any) -> None:
        super().__init__()
        self._progress = progress
        self._tasks: dict[Key, Any] = {}

    def started(self, key: Key, note: str) -> None:
        """Open a bar."""
        from rich.markup import escape

        if key not in self._tasks:
            self._tasks[key] = self._progress.add_task(escape(stage_label(*key)), total=None, text="")

    def stepped(self, key: Key, done: float, total: float, metrics: Mapping[str, Any]) -> None:
        """Move the bar."""
        from rich.markup import escape

        if key in self._tasks:
            text = escape(position_text(key, done, total, metrics))
            self._progress.update(self._tasks[key], completed=done, total=total, text=text)

    def line(self, key: Key, word: str, text: str, seconds: float | None) -> None:
        """Print a line above the bars and remove the bar of a finished stage."""
        from rich.text import Text

        if word == "done" and key in self._tasks:
            self._progress.remove_task(self._tasks.pop(key))
        mark, style = {"done": ("✓", "green"), "Cached": ("=", "cyan")}.get(word, ("!", "yellow"))
        took = f"{duration(seconds):>7}" if seconds is not None else f"{word:>7}"
        name = f" {stage_label(*key):<17} "
        self._progress.console.print(Text.assemble((mark, style), name, (took, "dim"), f"  {text}"))


@contextmanager
def watch(console: Any, *, quiet: bool = False) -> Iterator[Watcher]:
    """Yield the watcher that fits the console: bars, lines, or nothing if `quiet`."""
    from rich.text import Text

    if quiet:
        yield Watcher()
    elif not console.is_terminal:
        yield LineWatcher(lambda line: console.print(Text(line)))
    else:
        with bars(console) as progress:
            yield BarWatcher(progress)
