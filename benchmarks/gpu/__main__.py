"""Measure on a GPU what cannot be shown without one: `make gpu-check`, or part by part.

Every part is a process tree of its own that is ended after ten minutes, and gives the GPU's memory back. Its rows go to
the folder of --out as they are measured; each call prints one table of all parts measured there so far, in Markdown.
A part that fails or runs too long is a row that says why; its log is in the folder. `whole` and `study` go on where an
earlier call with the same folder was stopped; the others begin again.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gpu.limited import end_on_signals, run_limited
from benchmarks.gpu.machine import gpu, machine_facts
from benchmarks.gpu.parts import PARTS
from benchmarks.gpu.row import Rows
from benchmarks.gpu.table import rows_of, table

LIMIT_SECONDS = 600.0


@dataclass(frozen=True)
class _Call:
    """What was asked."""

    out: Path
    device: str
    small: bool
    overrides: list[str]
    limit: float


def main() -> int:
    """Run the parts that were asked for, one after the other, and print the table; 1 if any was missed or failed."""
    given = _parser().parse_args()
    unknown = [name for name in given.part if name not in PARTS]
    if unknown:
        _parser().error(f"unknown: {', '.join(unknown)}")
    device = given.device if given.device != "auto" else "cuda" if gpu() else "cpu"
    if device == "cuda" and gpu() is None:
        _parser().error("--device cuda: no GPU is visible here")
    if device == "cpu" and not (given.small or given.table):
        _parser().error("no GPU is visible here: --small runs every part on a CPU, to show that the script works")
    out = Path(given.out or f".rloop/{'gpu-check-small' if given.small else 'gpu-check'}").absolute()
    out.mkdir(parents=True, exist_ok=True)
    call = _Call(out, device, given.small, given.set, given.limit)
    end_on_signals()
    asked = [] if given.table else given.part or list(PARTS)
    for name in asked:
        print(f"{name}: {PARTS[name].shows}", file=sys.stderr, flush=True)
        _measure(name, call)
    text = table(PARTS, out)
    (out / "table.md").write_text(text, encoding="utf-8")
    print(text)
    bad = {row.verdict for name in asked for row in rows_of(PARTS[name], _rows(name, out).read()).values()}
    return 1 if bad & {"missed", "failed"} else 0


def _measure(name: str, call: _Call) -> None:
    rows, told = _rows(name, call.out), call.out / "rows" / f"{name}.trouble"
    rows.begin(machine_facts(call.device, call.small))
    told.unlink(missing_ok=True)
    arguments = {"part": name, "out": str(call.out), "device": call.device, "small": call.small}
    command = [sys.executable, "-m", "benchmarks.gpu.child", json.dumps({**arguments, "overrides": call.overrides})]
    seconds, trouble = run_limited(command, call.limit, call.out / "logs" / f"{name}.log")
    if trouble and told.is_file():
        trouble = f"{told.read_text()} (see {call.out / 'logs' / name}.log)"
    rows.end(PARTS[name].lines, seconds, trouble)
    print(f"{name}: {trouble or 'done'}, {seconds:.0f} s", file=sys.stderr, flush=True)


def _rows(name: str, out: Path) -> Rows:
    return Rows(out / "rows" / f"{name}.json")


def _parser() -> argparse.ArgumentParser:
    width = max(map(len, PARTS))
    listed = "\n".join(f"  {name:<{width}}  {part.shows} ({part.minutes})" for name, part in PARTS.items())
    examples = (
        "examples:\n"
        "  python -m benchmarks.gpu                          all parts, one after the other\n"
        "  python -m benchmarks.gpu explore evaluate         two of them; the table has all that were measured\n"
        "  python -m benchmarks.gpu --table                  the table alone\n"
        "  python -m benchmarks.gpu plan --set placement.vllm.colocated_memory=0.4\n"
        "  python -m benchmarks.gpu --small                  tiny policies, on a CPU if need be\n"
    )
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu",
        description=__doc__,
        epilog=f"parts (how long on one H200; small on two cores):\n{listed}\n\n{examples}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("part", nargs="*", metavar="PART", help="any of those below; all of them by default")
    parser.add_argument(
        "--small", action="store_true", help="tiny policies and few steps; bars of speed are not judged"
    )
    parser.add_argument("--out", type=Path, help="folder of rows, logs and policies [.rloop/gpu-check, with -small]")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto", help="where to compute [auto]")
    parser.add_argument("--set", action="append", default=[], metavar="A.B=C", help="a field of every run config")
    parser.add_argument("--limit", type=float, default=LIMIT_SECONDS, metavar="S", help="seconds a part may take [600]")
    parser.add_argument("--table", action="store_true", help="print the table, measure nothing")
    return parser


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    if shutil.which("git") is None:
        print("git is not installed: the table will not name the commit", file=sys.stderr)
    sys.exit(main())
