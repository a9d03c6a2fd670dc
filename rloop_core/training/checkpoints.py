"""Checkpoints of a phase: marked when whole, so that one which a crash cut short never counts."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from rloop_core.files import replace_text

MARKER = "rloop-complete.json"


@dataclass(frozen=True, order=True)
class Checkpoint:
    """A whole checkpoint.

    Args:
        updates: Optimizer updates done.
        cursor: Place in the problem stream.
        folder: Where it lies.
        ranks: Processes that it was made by; the random state of each is in it.
    """

    updates: int
    cursor: int
    folder: Path
    ranks: int = 1


def mark_whole(folder: Path, updates: int, cursor: int, ranks: int = 1) -> None:
    """Mark a checkpoint, last of all, with what TRL does not keep: the place in the problem stream, and the ranks."""
    replace_text(folder / MARKER, json.dumps({"updates": updates, "cursor": cursor, "ranks": ranks}))


def last_checkpoint(directory: Path) -> Checkpoint | None:
    """The newest whole checkpoint; those that a crash left without their marker are removed."""
    whole = []
    for folder in directory.glob("checkpoint-*"):
        try:
            marker = json.loads((folder / MARKER).read_text())
            ranks = int(marker.get("ranks", 1))
            whole.append(Checkpoint(int(marker["updates"]), int(marker["cursor"]), folder, ranks))
        except (OSError, ValueError, KeyError):
            shutil.rmtree(folder, ignore_errors=True)
    return max(whole, default=None)
