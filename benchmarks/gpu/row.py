"""What a part is to show, and what it showed: rows that outlive the process that measured them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from rloop_core.files import replace_text
from rloop_core.printable import printable_line

Verdict = Literal["met", "missed", "-", "failed", "not run"]
LONGEST = 400


@dataclass(frozen=True)
class Line:
    """One line of the table, known before anything is measured.

    Args:
        key: Name within its part.
        what: What is measured.
        bar: What it must come to; empty where it is only shown.
    """

    key: str
    what: str
    bar: str = ""


@dataclass(frozen=True)
class Row:
    """A line with its answer.

    Args:
        key: The line's.
        verdict: `-` where there is no bar, or where small runs do not judge it.
        measured: The figures.
        why: Why it was missed, failed or not run; what a reader must know of the others.
    """

    key: str
    verdict: Verdict
    measured: str = ""
    why: str = ""


class Rows:
    """The file of a part's rows, rewritten whole with each of them.

    Args:
        path: Where it lies.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def begin(self, machine: dict[str, Any]) -> None:
        """Forget what an earlier call measured.

        Args:
            machine: Where the part runs, as the table's heading shows it.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._write({"machine": machine, "rows": [], "seconds": None})

    def read(self) -> dict[str, Any] | None:
        """`machine`, `rows` and `seconds`; None where the part was never begun."""
        try:
            content: dict[str, Any] = json.loads(self.path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        content["rows"] = [Row(**row) for row in content["rows"]]
        return content

    def add(self, row: Row) -> None:
        """Keep a row; of two with one key the later counts."""
        content = self._content()
        content["rows"] = [one for one in content["rows"] if one["key"] != row.key] + [_printable(row)]
        self._write(content)

    def end(self, lines: Sequence[Line], seconds: float, trouble: str | None) -> None:
        """Answer the lines that have no row, and keep how long the part took.

        Args:
            lines: All lines of the part.
            seconds: How long it took.
            trouble: Why it ended early; None when it ended by itself.
        """
        answered = {one["key"] for one in self._content()["rows"]}
        for line in lines:
            if line.key not in answered:
                self.add(Row(line.key, "failed", "", trouble or "the part ended without an answer"))
        content = self._content()
        content["seconds"] = round(seconds, 1)
        self._write(content)

    def _content(self) -> dict[str, Any]:
        return json.loads(self.path.read_text(encoding="utf-8"))  # type: ignore[no-any-return]

    def _write(self, content: dict[str, Any]) -> None:
        replace_text(self.path, json.dumps(content, indent=1))


def _printable(row: Row) -> dict[str, Any]:
    return {name: printable_line(value, LONGEST) for name, value in asdict(row).items()}
