"""What a part of the check declares, what it gets to work with, the file that keeps its answers, and their table."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from benchmarks.gpu.device import ROOT, has_vllm
from benchmarks.measure import markdown_table
from rloop_core.config import Config, load_config
from rloop_core.files import replace_text
from rloop_core.printable import printable_line

Verdict = Literal["met", "missed", "-", "failed", "not run"]
LONGEST_CELL = 400


@dataclass(frozen=True)
class Line:
    """One line of the table, declared before anything is measured: its key within the part, perhaps with a bar."""

    key: str
    what: str
    bar: str = ""


@dataclass(frozen=True)
class Row:
    """The answer to a line: the figures, and why it was missed, failed or not run, or what a reader must know.

    The verdict is `-` where there is no bar, or where small runs do not judge it.
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
    """The JSON file of a part's rows below the folder `out`, rewritten with each of them: they outlive the process."""

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
    """One call of a part: on "cpu" or "cuda", perhaps small enough for two cores; `out` is the folder of all parts."""

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


def table(parts: Mapping[str, Part], out: Path) -> str:
    """Return heading and table of all rows below `out` in Markdown; lines of parts never begun appear as not run."""
    contents = {name: Rows(out, name).read() for name in parts}
    begun = {name: content for name, content in contents.items() if content}
    on_gpu = any(content["machine"]["driver"] and not content["machine"]["small"] for content in begun.values())
    parts_of: dict[str, list[str]] = {}
    for name, content in begun.items():
        parts_of.setdefault(_heading(content["machine"]), []).append(name)
    headings = [f"- {heading} ({', '.join(names)})" for heading, names in parts_of.items()]
    cells = [row for name, part in parts.items() for row in _cells(part, contents[name])]
    took = [f"{name} {content['seconds']:.0f} s" for name, content in begun.items() if content["seconds"]]
    lines = ["# Measured on a GPU" if on_gpu else "# Small, without a GPU: the script, not the speed", ""]
    lines += headings if len(headings) > 1 else [*parts_of] or ["Nothing measured yet."]
    lines += ["", *markdown_table(("part", "what", "measured", "bar", "verdict"), cells)]
    return "\n".join([*lines, "", f"Took: {', '.join(took) or 'nothing yet'}.", ""])


def rows_of(part: Part, content: dict[str, Any] | None) -> dict[str, Row]:
    """Return the answer to each line of a part, by key."""
    answered = {row.key: row for row in content["rows"]} if content else {}
    why = "the part was ended before it got here" if content else "not yet"
    return {line.key: answered.get(line.key) or Row(line.key, "not run", "", why) for line in part.lines}


def _cells(part: Part, content: dict[str, Any] | None) -> Iterator[tuple[str, ...]]:
    for line, row in zip(part.lines, rows_of(part, content).values(), strict=True):
        verdict = f"**{row.verdict}**" if row.verdict in ("missed", "failed") else row.verdict
        judged = f"{verdict}: {row.why}" if row.why and verdict != "-" else row.why or verdict
        yield part.name, line.what, row.measured, line.bar, judged


def _heading(machine: Mapping[str, Any]) -> str:
    """Return one machine, date and commit in a line."""
    device = machine["device"]
    if machine["driver"]:
        device += f" of {machine['memory_gib']} GiB, driver {machine['driver']}, {machine['cores']} CPU cores"
    small = ", small" if machine["small"] else ""
    libraries = ", ".join(f"{name} {number}" for name, number in machine["versions"].items())
    return f"{device}{small}; {machine['date']}, commit {machine['commit']}; {libraries}"
