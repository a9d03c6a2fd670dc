"""A process that runs a stage whose grandchild, in a session of its own, ignores SIGTERM: `python -m ... FOLDER`.

It writes `pids`: the supervisor's, the stage's, the grandchild's and the fork server's.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path

from rloop_core.runtime.supervisor import supervise
from rloop_core.stages.process import fork_server_context

_HANG = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"


def _stage(folder: Path) -> int:
    child = subprocess.Popen([sys.executable, "-c", _HANG], start_new_session=True)
    (folder / "new").write_text(f"{os.getppid()} {os.getpid()} {child.pid}")
    (folder / "new").rename(folder / "pids")
    time.sleep(600)
    return 0


def _supervised(folder: Path, control: Connection) -> None:
    supervise(lambda: _stage(folder), control, folder / "log")


if __name__ == "__main__":
    context = fork_server_context()
    context.set_forkserver_preload(["rloop_core.runtime.fork_server"])  # nothing here needs the libraries
    theirs, control = context.Pipe(duplex=False)
    if len(sys.argv) > 1:
        context.Process(target=_supervised, args=(Path(sys.argv[1]), theirs)).start()
        theirs.close()
        time.sleep(600)
