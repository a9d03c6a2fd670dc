"""Measure functions in processes of their own, and print what was measured.

`measured` starts `python -m benchmarks.measure MODULE:FUNCTION ARGUMENT...`, a program that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from importlib import import_module
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Result:
    """One measured figure with its bar, printed as one line."""

    what: str
    measured: float
    bar: float
    unit: str
    detail: str
    at_least: bool = False

    @property
    def met(self) -> bool:
        return self.measured >= self.bar if self.at_least else self.measured <= self.bar

    def __str__(self) -> str:
        bound = f"{'at least' if self.at_least else 'at most'} {self.bar:g}: {'met' if self.met else 'MISSED'}"
        figure = f"{self.measured:.3f} {self.unit} ({bound})"
        return f"{self.what:<58} {figure:<42} {self.detail}"


def machine() -> str:
    """Return the line above all figures: the day and the machine."""
    return f"{date.today()}, Python {platform.python_version()}, {os.cpu_count()} cores, {platform.machine()}"


def parse_names(parser: argparse.ArgumentParser, argument: str, known: Collection[str]) -> argparse.Namespace:
    """Parse the command line, whose positional argument takes any of the known names; all of them by default."""
    parser.add_argument(argument, nargs="*", help=f"any of {', '.join(known)}; all of them by default")
    options = parser.parse_args()
    chosen = getattr(options, argument) or list(known)
    if unknown := set(chosen) - set(known):
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    setattr(options, argument, chosen)
    return options


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table, with the pipes in its cells escaped."""
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |" for cells in (header, *rows)]
    return [lines[0], "|" + "---|" * len(header), *lines[1:]]


def measured(function: str, *arguments: Any, environment: dict[str, str] | None = None) -> dict[str, Any]:
    """Run `MODULE:FUNCTION` of this package in its own process.

    Returns:
        seconds and peak_mib, and over them what the function returned.

    Raises:
        RuntimeError: The process failed; with the end of its output.
    """
    command = [sys.executable, "-m", "benchmarks.measure", function, *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def peak_mib() -> float:
    """Return the most memory this program ever held; `getrusage` would begin with the peak of its parent."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def main() -> None:
    """Run the function named on the command line and print its figures as JSON."""
    name, *arguments = sys.argv[1:]
    module, _, function = name.partition(":")
    call = getattr(import_module(f"benchmarks.{module}"), function)
    started = time.monotonic()
    returned = call(*arguments)
    print(json.dumps({"seconds": time.monotonic() - started, "peak_mib": peak_mib(), **returned}))


if __name__ == "__main__":
    main()
