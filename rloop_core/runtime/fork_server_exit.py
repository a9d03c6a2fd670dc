"""The fork server loads this module first: at its exit, it ends the processes that its owner left running.

The fork server ends when its owner has ended, even by kill -9. If a supervisor was killed as well, the fork server is
the last process that can clean up.
"""

from __future__ import annotations

import atexit
import os
import signal

from rloop_core.runtime.orphans import end_orphans_of_dead_owner

# Ctrl-C reaches the whole process group; the owner ends the fork server.
signal.signal(signal.SIGINT, signal.SIG_IGN)

atexit.register(end_orphans_of_dead_owner, os.getpid())
