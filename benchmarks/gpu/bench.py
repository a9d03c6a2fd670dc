"""What a part gets: where to work, on what, and how to answer its lines."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu.machine import ROOT, has_vllm
from benchmarks.gpu.row import Line, Row, Rows, Verdict
from rloop_core.config import Config, load_config


@dataclass(frozen=True)
class Part:
    """One subject, measured in a process tree of its own.

    Args:
        name: As the command line calls it.
        shows: One sentence for the help.
        minutes: How long it may take on one H200, and small on two cores.
        lines: What it answers.
        run: Measures it.
        goes_on: Whether it goes on with what an earlier call left in the folder; the others begin again.
    """

    name: str
    shows: str
    minutes: str
    lines: tuple[Line, ...]
    run: Callable[[Bench], None]
    goes_on: bool = False


@dataclass(frozen=True)
class Bench:
    """One call of a part.

    Args:
        part: Its name.
        out: Folder of all parts.
        device: "cpu" or "cuda".
        small: Whether to run at a size that a CPU can bear.
        overrides: `a.b=c` assignments for every config, as `--set` gives them.
    """

    part: str
    out: Path
    device: str
    small: bool
    overrides: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        """The part's own."""
        place = self.out / "work" / f"{self.part}-{'small' if self.small else 'full'}-{self.device}"
        place.mkdir(parents=True, exist_ok=True)
        return place

    @property
    def in_loop_vllm(self) -> bool:
        """Whether vLLM can draw exploration's rollouts here."""
        return self.device == "cuda" and has_vllm()

    @property
    def engines(self) -> dict[str, str]:
        """The fields that name the best engine that there is here, in exploration and in the other stages."""
        return {
            "explore.engine": "vllm" if self.in_loop_vllm else "transformers",
            "placement.engine": "vllm" if has_vllm() else "transformers",
        }

    @property
    def engine_words(self) -> str:
        """The same for a reader."""
        in_loop, alone = self.engines.values()
        where = "" if self.device == "cuda" else ", on a CPU"
        return f"{in_loop} in exploration, {alone} elsewhere{where}"

    def config(self, file: str, changes: Mapping[str, Any], store: str = "store") -> Config:
        """A run config of the repository with changes by field, on this device, with its store in the part's folder."""
        placed = {"placement.device": self.device, "placement.store": str(self.folder / store), **changes}
        assigned = [f"{field}={json.dumps(value)}" for field, value in placed.items()]
        return load_config(ROOT / "deployments/configs" / file, [*assigned, *self.overrides])

    def answer(self, key: str, verdict: Verdict, measured: str = "", why: str = "") -> None:
        """Write a row; later calls for the same line replace it."""
        Rows(self.out / "rows" / f"{self.part}.json").add(Row(key, verdict, measured, why))

    def judge(self, key: str, met: bool, measured: str, why: str = "") -> None:
        """Answer a line that has a bar, whatever the size."""
        self.answer(key, "met" if met else "missed", measured, why)

    def judge_speed(self, key: str, met: bool, measured: str, why: str = "") -> None:
        """Answer a line whose bar holds for a GPU at full size alone."""
        if self.small or self.device == "cpu":
            self.answer(key, "-", measured, "; ".join(filter(None, ["not judged: too small to mean anything", why])))
        else:
            self.judge(key, met, measured, why)

    def show(self, key: str, measured: str, why: str = "") -> None:
        """Answer a line without a bar."""
        self.answer(key, "-", measured, why)

    def leave_out(self, key: str, why: str) -> None:
        """Say why a line cannot be measured here."""
        self.answer(key, "not run", "", why)
