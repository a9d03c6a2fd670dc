"""The fork server loads this module first: it takes a stage's environment, and at its exit it ends left-over processes.

The fork server ends when its owner has ended, even by kill -9. If a supervisor was killed as well, the fork server is
the last process that can clean up.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys

from rloop_core.runtime.environment import stage_environment
from rloop_core.runtime.orphans import end_orphans_of_dead_owner

# A program started anew holds no trace of the variables that are left out, and no library has read them yet.
_environment = stage_environment(os.environ)
if _environment != os.environ:
    os.execve(sys.executable, sys.orig_argv, _environment)  # noqa: S606

# Ctrl-C reaches the whole process group; the owner ends the fork server.
signal.signal(signal.SIGINT, signal.SIG_IGN)

atexit.register(end_orphans_of_dead_owner, os.getpid())
