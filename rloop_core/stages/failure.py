"""What went wrong in a stage's process, as plain values for whoever started it."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
from pathlib import Path
from typing import Any

from rloop_core.errors import RLoopError, error_as_data
from rloop_core.printable import printable_line
from rloop_core.rollout.engine import ENGINE_STARTS

FREE_SPACE = "free disk space, or name another placement.scratch, and start the same command again"
LESS_MEMORY = (
    "lower placement.micro_batch_rollouts (explore), placement.micro_batch_trajectories (rft) or "
    "placement.generation_batch (wherever completions are drawn), set placement.gradient_checkpointing, or free the "
    "device of other processes; then start the same command again: it resumes"
)
ENGINE_FIELD = "placement.engine"
_FULL_BYTES = 1 << 16
_LOG = "stage.log"
_LOG_BYTES = 1 << 18
_LAST_WORDS = re.compile(
    r"^\((?:EngineCore|Worker)[^)]*\) ERROR [^]]*\] ([\w.]*(?:Error|Exception): .*)$", re.MULTILINE
)


def failure_of(error: Exception, work: Path) -> dict[str, Any]:
    """`kind`, `what`, `field` and `fix` of an error, whether it is one of ours or not.

    A full disk and a full memory are named as such, and so is what ended a rollout engine: its own process knows, and
    writes it to the stage's log alone.
    """
    if isinstance(error, RLoopError):
        data = error_as_data(error)
        if error.field == ENGINE_FIELD and (cause := _engine_s_last_words(work)):
            data["what"] = f"{error.what}; it says: {cause}"
        return data
    if _is_out_of_memory(error):
        what = f"out of memory: {printable_line(str(error), 200)}"
        return {"kind": "StageError", "what": what, "field": "placement", "fix": LESS_MEMORY}
    if reason := _disk_trouble(error, work):
        return {"kind": "StoreError", "what": reason, "field": str(work), "fix": FREE_SPACE}
    return {"kind": type(error).__name__, "what": printable_line(str(error)), "field": None, "fix": None}


def is_full(work: Path) -> bool:
    """Whether the disk of a folder has no room left."""
    with contextlib.suppress(OSError):
        return shutil.disk_usage(work).free < _FULL_BYTES
    return False


def _is_out_of_memory(error: Exception) -> bool:
    """Whether a device, or the machine, had no memory left; asked by name, for torch may not be loaded."""
    name = type(error).__name__
    return isinstance(error, MemoryError) or name == "OutOfMemoryError" or "can't allocate memory" in str(error)


def _engine_s_last_words(work: Path) -> str | None:
    """The first error of the last engine that said anything in the stage's log, which led to all that follow."""
    try:
        with open(work / _LOG, "rb") as log:
            log.seek(max(0, (work / _LOG).stat().st_size - _LOG_BYTES))
            text = log.read().decode(errors="replace")
    except OSError:
        return None
    found = _LAST_WORDS.findall(text.rpartition(ENGINE_STARTS)[2])
    return printable_line(found[0], 200) if found else None


def _disk_trouble(error: Exception, work: Path) -> str | None:
    """Why scratch cannot be written, if that is what the error is about.

    Libraries that write from native code raise kinds of their own, so their words and the disk itself count too.
    """
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
        return str(error.strerror)
    full = os.strerror(errno.ENOSPC)
    return f"{full} ({type(error).__name__})" if full in str(error) or is_full(work) else None
