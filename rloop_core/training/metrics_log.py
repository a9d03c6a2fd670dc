"""What happened in each RL step, in numbers: one JSON line a step, cut back to the checkpoint when a phase resumes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rloop_core.files import replace_text
from rloop_core.json_text import parse_json

Row = dict[str, Any]


class StepLedger:
    """Two JSON-lines files: `metrics.jsonl` (what was computed) and `timings.jsonl` (how long it took).

    They are apart because the first is part of the artifact, whose digest must not depend on the clock.

    Args:
        directory: Where both files are.
        keep_steps: RL steps to keep of an earlier attempt; later lines are dropped.
        tell: Called with each step's metrics, timings included.
    """

    def __init__(self, directory: Path, keep_steps: int, tell: Callable[[Row], None]) -> None:
        self.metrics_path = directory / "metrics.jsonl"
        self.timings_path = directory / "timings.jsonl"
        self._tell = tell
        for path in (self.metrics_path, self.timings_path):
            kept = [row for row in read_rows(path) if row["step"] <= keep_steps]
            replace_text(path, "".join(json.dumps(row) + "\n" for row in kept))

    def add(self, metrics: Row, timings: Row) -> None:
        """Record one RL step."""
        for path, row in ((self.metrics_path, metrics), (self.timings_path, timings)):
            with open(path, "a", encoding="utf-8") as stream:
                stream.write(json.dumps(row) + "\n")
        self._tell({**metrics, "seconds": timings})


def read_rows(path: Path) -> list[Row]:
    """Rows of a JSON-lines file that this module wrote; a last line cut short by a crash is left out."""
    if not path.exists():
        return []
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            rows.append(parse_json(line))
        except ValueError:
            break
    return rows
