"""One rank of a stage as `accelerate launch` starts it: `python -m rloop_core.stages.rank JOB EVENTS`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from rloop_core.runtime.lifetime import die_with_parent
from rloop_core.stages.ranks import read_job, run_rank


def main(job: Path, events: Path) -> None:
    """Compute this rank's share of a job; rank 0 appends what it has to tell to a file, a JSON line each."""
    die_with_parent()

    def tell(event: dict[str, Any]) -> None:
        with open(events, "a", encoding="utf-8") as stream:
            stream.write(json.dumps(event) + "\n")

    run_rank(read_job(job), tell)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
