"""What a part of the GPU check declares, what it gets to work with, the file of its rows, and their table."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from benchmarks.gpu.device import ROOT, has_vllm
from benchmarks.measure import markdown_table
from rloop_core.config import Config, load_config
from rloop_core.printable import printable_line

Verdict = Literal["met", "missed", "-", "failed", "not run"]


@dataclass(frozen=True)
class Line:
    """One line of the table, declared before anything is measured: its key within the part, perhaps with a bar."""

    key: str
    what: str
    bar: str = ""


@dataclass(frozen=True)
class Row:
    """The answer to a line; the verdict is `-` where there is no bar, or where small runs do not judge it."""

    key: str
    verdict: Verdict
    measured: str = ""
    why: str = ""


@dataclass(frozen=True)
class Part:
    """One subject, measured in a process tree of its own."""

    name: str
    shows: str
    """One sentence for the help."""
    minutes: str
    """How long it may take on one H200, and small on two cores."""
    lines: tuple[Line, ...]
    run: Callable[[Check], None]


class NotMeasured(Exception):  # noqa: N818 - says what is the case
    """A part cannot be measured here: its lines become `not run` with this message."""


@dataclass(frozen=True)
class Check:
    """One call of a part. Its rows outlive its process: each is written to a file when it is measured."""

    part: str
    out: Path
    """Folder of all parts."""
    device: str = "cpu"
    """"cpu" or "cuda"."""
    small: bool = True
    """Small enough for two cores."""
    overrides: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        """The part's own folder."""
        return self.out / "work" / self.part

    @property
    def in_loop_vllm(self) -> bool:
        """True if vLLM can sample exploration's rollouts here."""
        return self.device == "cuda" and has_vllm()

    @property
    def engines(self) -> dict[str, str]:
        """The config fields that name the best engine available, in exploration and in the other stages."""
        return {
            "explore.engine": "vllm" if self.in_loop_vllm else "transformers",
            "placement.engine": "vllm" if has_vllm() else "transformers",
        }

    def config(self, file: str, changes: Mapping[str, Any], store: str = "store") -> Config:
        """Return a run config of the repository with changed fields, on this device, its store in the part's folder."""
        placed = {"placement.device": self.device, "placement.store": str(self.folder / store), **changes}
        assigned = [f"{field}={json.dumps(value)}" for field, value in placed.items()]
        return load_config(ROOT / "deployments/configs" / file, [*assigned, *self.overrides])

    def answer(self, key: str, verdict: Verdict, measured: str = "", why: str = "") -> None:
        """Write a row; it replaces an earlier one of the same line."""
        row = {name: printable_line(value, 400) for name, value in asdict(Row(key, verdict, measured, why)).items()}
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with self.file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def judge(self, key: str, met: bool, measured: str, why: str = "") -> None:
        """Answer a line whose bar holds at any size."""
        self.answer(key, "met" if met else "missed", measured, why)

    def judge_speed(self, key: str, met: bool, measured: str, why: str = "") -> None:
        """Answer a line whose bar holds on a GPU at full size only."""
        if self.small or self.device == "cpu":
            self.show(key, measured, "; ".join(filter(None, ["not judged: too small to mean anything", why])))
        else:
            self.judge(key, met, measured, why)

    def show(self, key: str, measured: str, why: str = "") -> None:
        """Answer a line without a bar."""
        self.answer(key, "-", measured, why)

    def leave_out(self, why: str, *keys: str) -> None:
        """Record why lines cannot be measured here."""
        for key in keys:
            self.answer(key, "not run", "", why)

    def fill(self, part: Part, verdict: Verdict, why: str) -> None:
        """Answer every line that has no row."""
        for key, row in self.rows(part).items():
            if row is NOT_RUN:
                self.answer(key, verdict, "", why)

    def rows(self, part: Part) -> dict[str, Row]:
        """Return the last answer to each line of the part, by key; `NOT_RUN` where there is none."""
        text = self.file.read_text(encoding="utf-8") if self.file.exists() else ""
        found = {row.key: row for row in (Row(**json.loads(line)) for line in text.splitlines())}
        return {line.key: found.get(line.key, NOT_RUN) for line in part.lines}

    @property
    def file(self) -> Path:
        """JSON lines, a row each."""
        return self.out / "rows" / f"{self.part}.jsonl"


NOT_RUN = Row("", "not run", "", "not yet")


def table(parts: Mapping[str, Part], out: Path, heading: str) -> str:
    """Return all rows below `out` in Markdown; lines of parts never begun appear as not run."""
    cells = []
    for name, part in parts.items():
        for line, row in zip(part.lines, Check(name, out).rows(part).values(), strict=True):
            verdict = f"**{row.verdict}**" if row.verdict in ("missed", "failed") else row.verdict
            judged = f"{verdict}: {row.why}" if row.why and verdict != "-" else row.why or verdict
            cells.append((name, line.what, row.measured, line.bar, judged))
    return "\n".join([heading, "", *markdown_table(("part", "what", "measured", "bar", "verdict"), cells), ""])
