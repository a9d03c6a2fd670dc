"""Run `rloop run` for a study: the process ends with the study, even by kill -9.

It is a separate program, because processes that the run spawns import its main module again, which must stay light.
"""

from __future__ import annotations

import sys

from rloop_core.cli.entry import main
from rloop_core.runtime.lifetime import die_with_parent

if __name__ == "__main__":
    die_with_parent(int(sys.argv[1]))
    main(["run", "--config", sys.argv[2], "--quiet"])
