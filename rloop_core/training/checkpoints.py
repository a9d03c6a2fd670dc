"""Checkpoints of a phase: a marker file, written last, says that one is complete."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from rloop_core.files import replace_text

MARKER = "rloop-complete.json"


@dataclass(frozen=True, order=True)
class Checkpoint:
    """A complete checkpoint.

    Args:
        updates: Optimizer updates done.
        cursor: Position in the problem stream.
        folder: Folder of the checkpoint.
        ranks: Processes that made it; it holds the random state of each.
    """

    updates: int
    cursor: int
    folder: Path
    ranks: int = 1


def mark_complete(folder: Path, updates: int, cursor: int, ranks: int = 1) -> None:
    """Write a checkpoint's marker, with what TRL does not keep: the position in the problem stream, and the ranks."""
    replace_text(folder / MARKER, json.dumps({"updates": updates, "cursor": cursor, "ranks": ranks}))


def last_checkpoint(directory: Path) -> Checkpoint | None:
    """Return the newest complete checkpoint, and remove those without a marker, which a crash left behind."""
    complete = []
    for folder in directory.glob("checkpoint-*"):
        try:
            marker = json.loads((folder / MARKER).read_text())
            ranks = int(marker.get("ranks", 1))
            complete.append(Checkpoint(int(marker["updates"]), int(marker["cursor"]), folder, ranks))
        except (OSError, ValueError, KeyError):
            shutil.rmtree(folder, ignore_errors=True)
    return max(complete, default=None)
