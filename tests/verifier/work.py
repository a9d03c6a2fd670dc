"""What the workers of `test_pool` do with an item: [action, argument]."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any


def act(item: list[Any]) -> Any:
    """Return the argument; or first spin, use memory, die, or stop, the last two as often as a file has bytes."""
    action, argument = item
    if action == "spin":
        while True:
            pass
    if action == "remember":
        return len(bytearray(argument))
    if action == "nest":
        return act(["nest", argument])
    if action == "divide":
        return 1 / argument
    if action in ("SIGKILL", "SIGSTOP"):
        path = Path(argument)
        if size := path.stat().st_size:
            os.truncate(path, size - 1)
            os.kill(os.getpid(), signal.Signals[action])
            time.sleep(60)
    return argument
