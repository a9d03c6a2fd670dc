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
from pathlib import Path

from benchmarks.gpu.bench import Rows, rows_of, table
from benchmarks.gpu.device import gpu, machine_facts
from benchmarks.gpu.parts import PARTS
from benchmarks.gpu.processes import run_limited

_EXAMPLES = """\
examples:
  python -m benchmarks.gpu                          all parts, one after the other
  python -m benchmarks.gpu explore evaluate         two of them; the table has all that were measured
  python -m benchmarks.gpu --table                  the table alone
  python -m benchmarks.gpu plan --set placement.vllm.colocated_memory=0.4
  python -m benchmarks.gpu --small                  tiny policies, on a CPU if need be
"""


def main() -> int:
    """Run the chosen parts one after the other and print the table; return 1 if a bar was missed or a part failed."""
    parser = _parser()
    options = parser.parse_args()
    if unknown := [name for name in options.part if name not in PARTS]:
        parser.error(f"unknown: {', '.join(unknown)}")
    device = options.device if options.device != "auto" else "cuda" if gpu() else "cpu"
    if device == "cuda" and gpu() is None:
        parser.error("--device cuda: no GPU is visible here")
    if device == "cpu" and not (options.small or options.table):
        parser.error("no GPU is visible here: --small runs every part on a CPU, to show that the script works")
    out = Path(options.out or f".rloop/{'gpu-check-small' if options.small else 'gpu-check'}").absolute()
    out.mkdir(parents=True, exist_ok=True)
    chosen = [] if options.table else options.part or list(PARTS)
    for name in chosen:
        print(f"{name}: {PARTS[name].shows}", file=sys.stderr, flush=True)
        fields = {"part": name, "out": str(out), "device": device, "small": options.small, "overrides": options.set}
        rows = Rows(out, name)
        rows.begin(machine_facts(device, options.small))
        command = [sys.executable, "-m", "benchmarks.gpu.parts", json.dumps(fields)]
        seconds, trouble = run_limited(command, options.limit, out / "logs" / f"{name}.log")
        rows.fill(PARTS[name].lines, "failed", trouble or "the part ended without an answer")
        rows.end(seconds)
        print(f"{name}: {trouble or 'done'}, {seconds:.0f} s", file=sys.stderr, flush=True)
    text = table(PARTS, out)
    (out / "table.md").write_text(text, encoding="utf-8")
    print(text)
    verdicts = {row.verdict for name in chosen for row in rows_of(PARTS[name], Rows(out, name).read()).values()}
    return 1 if verdicts & {"missed", "failed"} else 0


def _parser() -> argparse.ArgumentParser:
    width = max(map(len, PARTS))
    listed = "\n".join(f"  {name:<{width}}  {part.shows} ({part.minutes})" for name, part in PARTS.items())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu",
        description=__doc__,
        epilog=f"parts (how long on one H200; small on two cores):\n{listed}\n\n{_EXAMPLES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("part", nargs="*", metavar="PART", help="any of those below; all of them by default")
    add("--small", action="store_true", help="tiny policies and few steps; bars of speed are not judged")
    add("--out", type=Path, help="folder of rows, logs and policies [.rloop/gpu-check, with -small]")
    add("--device", choices=["auto", "cpu", "cuda"], default="auto", help="where to compute [auto]")
    add("--set", action="append", default=[], metavar="A.B=C", help="a field of every run config")
    add("--limit", type=float, default=600.0, metavar="S", help="seconds a part may take [600]")
    add("--table", action="store_true", help="print the table, measure nothing")
    return parser


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    if shutil.which("git") is None:
        print("git is not installed: the table will not name the commit", file=sys.stderr)
    sys.exit(main())
