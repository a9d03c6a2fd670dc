"""What a part of the check declares, what it gets to work with, and the file that keeps its answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from benchmarks.gpu.device import ROOT, has_vllm
from rloop_core.config import Config, load_config
from rloop_core.files import replace_text
from rloop_core.printable import printable_line

Verdict = Literal["met", "missed", "-", "failed", "not run"]
LONGEST_CELL = 400


@dataclass(frozen=True)
class Line:
    """One line of the table, declared before anything is measured.

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
    """The answer to a line.

    Args:
        key: The line's.
        verdict: `-` where there is no bar, or where small runs do not judge it.
        measured: The figures.
        why: Why it was missed, failed or not run, or what a reader must know.
    """

    key: str
    verdict: Verdict
    measured: str = ""
    why: str = ""


@dataclass(frozen=True)
class Part:
    """One subject, measured in a process tree of its own.

    Args:
        name: Name on the command line.
        shows: One sentence for the help.
        minutes: How long it may take on one H200, and small on two cores.
        lines: What it answers.
        run: Measures it.
        resumes: Continue with what an earlier call left in the folder; other parts begin again.
    """

    name: str
    shows: str
    minutes: str
    lines: tuple[Line, ...]
    run: Callable[[Bench], None]
    resumes: bool = False


class NotMeasured(Exception):  # noqa: N818 - says what is the case
    """A part cannot be measured here: its lines become `not run` with this message."""


class Rows:
    """The JSON file of a part's rows, rewritten with each of them so that they outlive the process.

    Args:
        out: Folder of all parts.
        part: Name of the part.
    """

    def __init__(self, out: Path, part: str) -> None:
        self.path = out / "rows" / f"{part}.json"

    def begin(self, machine: dict[str, Any]) -> None:
        """Drop the rows of an earlier call; `machine` is for the table's heading."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._write({"machine": machine, "rows": [], "seconds": None})

    def read(self) -> dict[str, Any] | None:
        """Return `machine`, `rows` and `seconds`; None if the part was never begun."""
        if not self.path.exists():
            return None
        content: dict[str, Any] = json.loads(self.path.read_text(encoding="utf-8"))
        return {**content, "rows": [Row(**row) for row in content["rows"]]}

    def add(self, row: Row) -> None:
        """Add a row; it replaces an earlier one with the same key."""
        content = self._content()
        printable = {name: printable_line(value, LONGEST_CELL) for name, value in asdict(row).items()}
        content["rows"] = [other for other in content["rows"] if other["key"] != row.key] + [printable]
        self._write(content)

    def fill(self, lines: Sequence[Line], verdict: Verdict, why: str) -> None:
        """Answer every line that has no row."""
        answered = {row["key"] for row in self._content()["rows"]}
        for line in lines:
            if line.key not in answered:
                self.add(Row(line.key, verdict, "", why))

    def end(self, seconds: float) -> None:
        """Record how long the part took."""
        self._write({**self._content(), "seconds": round(seconds, 1)})

    def _content(self) -> dict[str, Any]:
        return json.loads(self.path.read_text(encoding="utf-8"))  # type: ignore[no-any-return]

    def _write(self, content: dict[str, Any]) -> None:
        replace_text(self.path, json.dumps(content, indent=1))


@dataclass(frozen=True)
class Bench:
    """One call of a part.

    Args:
        part: Its name.
        out: Folder of all parts.
        device: "cpu" or "cuda".
        small: Run at a size that two CPU cores can bear.
        overrides: `a.b=c` assignments for every config, as `--set` gives them.
    """

    part: str
    out: Path
    device: str
    small: bool
    overrides: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        """The part's own folder."""
        folder = self.out / "work" / f"{self.part}-{'small' if self.small else 'full'}-{self.device}"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    @property
    def in_loop_vllm(self) -> bool:
        """True if vLLM can generate exploration's rollouts here."""
        return self.device == "cuda" and has_vllm()

    @property
    def engines(self) -> dict[str, str]:
        """The config fields that name the best engine available, in exploration and in the other stages."""
        return {
            "explore.engine": "vllm" if self.in_loop_vllm else "transformers",
            "placement.engine": "vllm" if has_vllm() else "transformers",
        }

    @property
    def engine_words(self) -> str:
        """The engines for a reader of the table."""
        in_loop, alone = self.engines.values()
        return f"{in_loop} in exploration, {alone} elsewhere{'' if self.device == 'cuda' else ', on a CPU'}"

    def config(self, file: str, changes: Mapping[str, Any], store: str = "store") -> Config:
        """Return a run config of the repository with changed fields, on this device, its store in the part's folder."""
        placed = {"placement.device": self.device, "placement.store": str(self.folder / store), **changes}
        assigned = [f"{field}={json.dumps(value)}" for field, value in placed.items()]
        return load_config(ROOT / "deployments/configs" / file, [*assigned, *self.overrides])

    def answer(self, key: str, verdict: Verdict, measured: str = "", why: str = "") -> None:
        """Write a row; later calls for the same line replace it."""
        Rows(self.out, self.part).add(Row(key, verdict, measured, why))

    def judge(self, key: str, met: bool, measured: str, why: str = "") -> None:
        """Answer a line whose bar holds at any size."""
        self.answer(key, "met" if met else "missed", measured, why)

    def judge_speed(self, key: str, met: bool, measured: str, why: str = "") -> None:
        """Answer a line whose bar holds on a GPU at full size only."""
        if self.small or self.device == "cpu":
            self.answer(key, "-", measured, "; ".join(filter(None, ["not judged: too small to mean anything", why])))
        else:
            self.judge(key, met, measured, why)

    def show(self, key: str, measured: str, why: str = "") -> None:
        """Answer a line without a bar."""
        self.answer(key, "-", measured, why)

    def leave_out(self, why: str, *keys: str) -> None:
        """Record why lines cannot be measured here."""
        for key in keys:
            self.answer(key, "not run", "", why)
