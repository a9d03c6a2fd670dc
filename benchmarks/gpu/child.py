"""One part in a process of its own: `python -m benchmarks.gpu.child JSON`, the JSON being a `Bench`'s arguments."""

from __future__ import annotations

import json
import os
import shutil
import sys
import traceback
from pathlib import Path

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.parts import PARTS
from rloop_core.errors import cause_of
from rloop_core.printable import printable_line
from rloop_core.runtime.lifetime import die_with_parent


def main(arguments: str) -> int:
    """Measure the part; an error answers the lines that are still open, and its trace stays in the log."""
    if os.getppid() != 1:  # in a container the script itself may be process 1, whose children none adopted
        die_with_parent()
    given = json.loads(arguments)
    bench = Bench(given["part"], Path(given["out"]), given["device"], given["small"], tuple(given["overrides"]))
    part = PARTS[bench.part]
    if not part.goes_on:
        shutil.rmtree(bench.folder)
    try:
        part.run(bench)
    except Exception as error:
        traceback.print_exc()
        ours = cause_of(error)
        what = str(ours) if ours else f"{type(error).__name__}: {error}"
        (bench.out / "rows" / f"{bench.part}.trouble").write_text(printable_line(what, 300))
        return 1
    return 0


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    sys.exit(main(sys.argv[1]))
