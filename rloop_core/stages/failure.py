"""What went wrong in a stage's process, as plain values for whoever started it."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
from pathlib import Path
from typing import Any

from rloop_core.errors import RLoopError, error_as_data, is_out_of_memory
from rloop_core.printable import printable_line
from rloop_core.rollout.engine import ENGINE_STARTS
from rloop_core.stages.job import StageJob
from rloop_core.stages.oom import device_advice, host_advice

FREE_SPACE = "free disk space, or name another placement.scratch, and start the same command again"
ENGINE_FIELD = "placement.engine"
_FULL_BYTES = 1 << 16
_LOG_BYTES = 1 << 18
_LAST_WORDS = re.compile(
    r"^\((?:EngineCore|Worker)[^)]*\) ERROR [^]]*\] ([\w.]*(?:Error|Exception): .*)$", re.MULTILINE
)


def failure_of(error: Exception, job: StageJob) -> dict[str, Any]:
    """`kind`, `what`, `field` and `fix` of an error, whether it is one of ours or not.

    A full disk and a full memory are named as such, and so is what ended a rollout engine: its own process knows, and
    writes it to the stage's log alone.
    """
    work = Path(job.work)
    if isinstance(error, RLoopError):
        data = error_as_data(error)
        if error.field == ENGINE_FIELD and (cause := _engine_s_last_words(job.log_file)):
            data["what"] = f"{error.what}; it says: {cause}"
        return data
    if is_out_of_memory(error):
        what = f"out of memory: {printable_line(str(error), 200)}"
        return {"kind": "StageError", "what": what, "field": "placement", "fix": _memory_advice(error, job)}
    if reason := _disk_trouble(error, work):
        return {"kind": "StoreError", "what": reason, "field": str(work), "fix": FREE_SPACE}
    return {"kind": type(error).__name__, "what": printable_line(str(error)), "field": None, "fix": None}


def is_full(work: Path) -> bool:
    """Whether the disk of a folder has no room left."""
    with contextlib.suppress(OSError):
        return shutil.disk_usage(work).free < _FULL_BYTES
    return False


def _memory_advice(error: Exception, job: StageJob) -> str:
    """The device's own error is torch's; any other is about the machine's memory."""
    return device_advice(job) if type(error).__name__ == "OutOfMemoryError" else host_advice(job)


def _engine_s_last_words(path: Path) -> str | None:
    """The first error of the last engine that said anything in the stage's log, which led to all that follow."""
    try:
        with open(path, "rb") as log:
            log.seek(max(0, path.stat().st_size - _LOG_BYTES))
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
