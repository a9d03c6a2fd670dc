"""Measure on a GPU what cannot be shown without one: `make gpu-check`, or part by part.

Every part is a process tree of its own that is ended after ten minutes, and gives the GPU's memory back. Its rows go to
the folder of --out as they are measured; each call prints one table of all parts measured there so far, in Markdown.
A part that fails or runs too long is a row that says why; its log is in the folder.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import traceback
from pathlib import Path

from benchmarks.gpu import evaluate, explore, faults, sharding, whole
from benchmarks.gpu.check import Check, NotMeasured, table
from benchmarks.gpu.device import gpu, heading
from benchmarks.gpu.processes import run_limited
from rloop_core.errors import cause_of
from rloop_core.printable import printable_line
from rloop_core.runtime.lifetime import die_with_parent

PARTS = {module.PART.name: module.PART for module in (explore, evaluate, whole, sharding, faults)}
_EXAMPLES = """\
examples:
  python -m benchmarks.gpu                     all parts, one after the other
  python -m benchmarks.gpu explore evaluate    two of them; the table has all that were measured
  python -m benchmarks.gpu --table             the table alone
  python -m benchmarks.gpu whole --set placement.vllm.colocated_memory=0.4
  python -m benchmarks.gpu --small             tiny policies, on a CPU if need be
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
    verdicts = set()
    for name in chosen:
        print(f"{name}: {PARTS[name].shows}", file=sys.stderr, flush=True)
        check = Check(name, out, device, options.small, tuple(options.set))
        check.file.unlink(missing_ok=True)
        fields = json.dumps({**vars(check), "out": str(out)})
        command = [sys.executable, "-m", "benchmarks.gpu", "--run", fields]
        seconds, trouble = run_limited(command, options.limit, out / "logs" / f"{name}.log")
        check.fill(PARTS[name], "failed", trouble or "the part ended without an answer")
        verdicts |= {row.verdict for row in check.rows(PARTS[name]).values()}
        print(f"{name}: {trouble or 'done'}, {seconds:.0f} s", file=sys.stderr, flush=True)
    text = table(PARTS, out, heading(device, options.small))
    (out / "table.md").write_text(text, encoding="utf-8")
    print(text)
    return 1 if verdicts & {"missed", "failed"} else 0


def run_part(arguments: str) -> int:
    """Measure a part in this process: the fields of `Check` as JSON.

    An error answers the lines that are still open, and its traceback stays in the log.
    """
    if os.getppid() != 1:  # in a container the script itself may be process 1
        die_with_parent()
    fields = json.loads(arguments)
    check = Check(**{**fields, "out": Path(fields["out"]), "overrides": tuple(fields["overrides"])})
    part = PARTS[check.part]
    shutil.rmtree(check.folder, ignore_errors=True)
    check.folder.mkdir(parents=True)
    try:
        part.run(check)
    except NotMeasured as error:
        check.fill(part, "not run", str(error))
    except Exception as error:
        traceback.print_exc()
        reason = printable_line(str(cause_of(error) or f"{type(error).__name__}: {error}"), 300)
        check.fill(part, "failed", f"{reason} (see {check.out / 'logs' / check.part}.log)")
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    listed = "\n".join(f"  {name:<9} {part.shows} ({part.minutes})" for name, part in PARTS.items())
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
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    sys.exit(run_part(sys.argv[2]) if sys.argv[1:2] == ["--run"] else main())
