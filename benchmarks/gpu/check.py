"""What a part of the GPU check declares, what it gets to work with, the file of its rows, and their table."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from benchmarks.gpu.device import ROOT, has_vllm
from benchmarks.measure import markdown_table
from rloop_core.config import Config, load_config
from rloop_core.files import replace_text
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
    """One call of a part. Its rows outlive its process: a JSON file is rewritten with each of them."""

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
        content = self.content()
        self._write({**content, "rows": [old for old in content["rows"] if old["key"] != key] + [row]})

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

    def begin(self, heading: str) -> None:
        """Drop the rows of an earlier call; the heading names machine, date and versions."""
        self._write({"heading": heading, "rows": [], "seconds": None})

    def fill(self, lines: Sequence[Line], verdict: Verdict, why: str) -> None:
        """Answer every line that has no row."""
        answered = {row["key"] for row in self.content()["rows"]}
        for line in lines:
            if line.key not in answered:
                self.answer(line.key, verdict, "", why)

    def end(self, seconds: float) -> None:
        """Record how long the part took."""
        self._write({**self.content(), "seconds": round(seconds, 1)})

    def content(self) -> dict[str, Any]:
        """Return `heading`, `rows` and `seconds`, empty if the part was never begun."""
        if not self._path.exists():
            return {"heading": "", "rows": [], "seconds": None}
        return json.loads(self._path.read_text(encoding="utf-8"))  # type: ignore[no-any-return]

    def rows(self, part: Part) -> dict[str, Row]:
        """Return the answer to each line of the part, by key."""
        content = self.content()
        answered = {row["key"]: Row(**row) for row in content["rows"]}
        why = "the part was ended before it got here" if content["heading"] else "not yet"
        return {line.key: answered.get(line.key) or Row(line.key, "not run", "", why) for line in part.lines}

    @property
    def _path(self) -> Path:
        return self.out / "rows" / f"{self.part}.json"

    def _write(self, content: dict[str, Any]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        replace_text(self._path, json.dumps(content, indent=1))


def table(parts: Mapping[str, Part], out: Path) -> str:
    """Return headings and table of all rows below `out` in Markdown; lines of parts never begun appear as not run."""
    headings: dict[str, list[str]] = {}
    cells, took = [], []
    for name, part in parts.items():
        check = Check(name, out)
        content = check.content()
        if content["heading"]:
            headings.setdefault(content["heading"], []).append(name)
        if content["seconds"]:
            took.append(f"{name} {content['seconds']:.0f} s")
        for line, row in zip(part.lines, check.rows(part).values(), strict=True):
            verdict = f"**{row.verdict}**" if row.verdict in ("missed", "failed") else row.verdict
            judged = f"{verdict}: {row.why}" if row.why and verdict != "-" else row.why or verdict
            cells.append((name, line.what, row.measured, line.bar, judged))
    lines = [f"- {heading} ({', '.join(names)})" for heading, names in headings.items()] or ["Nothing measured yet."]
    lines += ["", *markdown_table(("part", "what", "measured", "bar", "verdict"), cells)]
    return "\n".join([*lines, "", f"Took: {', '.join(took) or 'nothing yet'}.", ""])
