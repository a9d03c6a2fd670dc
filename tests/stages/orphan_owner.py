"""A process that runs a stage with a child in a session of its own, deaf to SIGTERM: `python -m ... FOLDER`.

It writes `pids`: the stage's, the child's and the fork server's.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from rloop_core.stages.job import StageJob
from rloop_core.stages.process import _become_stage, fork_server_context
from tests.conftest import small_config

_HANG = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"


def _stage(folder: Path) -> None:
    _become_stage(StageJob("explore", "run", 0, small_config(), "", (), str(folder), "", 0))
    child = subprocess.Popen([sys.executable, "-c", _HANG], start_new_session=True)
    (folder / "new").write_text(f"{os.getpid()} {child.pid} {os.getppid()}")
    (folder / "new").rename(folder / "pids")
    time.sleep(600)


if __name__ == "__main__":
    context = fork_server_context()
    context.set_forkserver_preload(["rloop_core.runtime.fork_server"])  # nothing here needs the libraries
    context.Process(target=_stage, args=(Path(sys.argv[1]),)).start()
    time.sleep(600)
