"""`rloop run` as a study starts it: gone with the study, even by kill -9."""

from __future__ import annotations

import sys

from rloop_core.cli.entry import main
from rloop_core.runtime.lifetime import die_with_parent

if __name__ == "__main__":
    die_with_parent(int(sys.argv[1]))
    main(["run", "--config", sys.argv[2], "--quiet"])
