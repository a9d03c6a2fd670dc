"""All parts in the table's order, and the process of one of them: `python -m benchmarks.gpu.parts JSON`."""

from __future__ import annotations

import json
import os
import shutil
import sys
import traceback
from pathlib import Path

from benchmarks.gpu import evaluate, explore, faults, memory, plan, sharding, study, whole
from benchmarks.gpu.bench import Bench, NotMeasured, Rows
from rloop_core.errors import cause_of
from rloop_core.printable import printable_line
from rloop_core.runtime.lifetime import die_with_parent

PARTS = {module.PART.name: module.PART for module in (explore, evaluate, memory, sharding, plan, whole, faults, study)}


def main(arguments: str) -> int:
    """Measure a part; an error answers the lines that are still open, and its traceback stays in the log.

    Args:
        arguments: The fields of `Bench` as JSON.
    """
    if os.getppid() != 1:  # in a container the script itself may be process 1
        die_with_parent()
    fields = json.loads(arguments)
    bench = Bench(**{**fields, "out": Path(fields["out"]), "overrides": tuple(fields["overrides"])})
    part, rows = PARTS[bench.part], Rows(bench.out, bench.part)
    if not part.resumes:
        shutil.rmtree(bench.folder)
    try:
        part.run(bench)
    except NotMeasured as error:
        rows.fill(part.lines, "not run", str(error))
    except Exception as error:
        traceback.print_exc()
        reason = printable_line(str(cause_of(error) or f"{type(error).__name__}: {error}"), 300)
        rows.fill(part.lines, "failed", f"{reason} (see {bench.out / 'logs' / bench.part}.log)")
        return 1
    return 0


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    sys.exit(main(sys.argv[1]))
