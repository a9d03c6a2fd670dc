"""Loaded first by the fork server: what it does at its end.

It ends when its caller has, even by kill -9; if a supervisor was killed as well, this is who is left to clear up.
"""

from __future__ import annotations

import atexit
import os
import signal

from rloop_core.runtime.orphans import end_strays_of_the_gone

# Ctrl-C reaches the whole process group; ending the fork server is its caller's business.
signal.signal(signal.SIGINT, signal.SIG_IGN)

atexit.register(end_strays_of_the_gone, os.getpid())
