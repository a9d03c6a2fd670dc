"""What went wrong in a stage's process, as plain values for whoever started it."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from pathlib import Path
from typing import Any

from rloop_core.errors import RLoopError, error_as_data
from rloop_core.printable import printable_line

FREE_SPACE = "free disk space, or name another placement.scratch, and start the same command again"
_FULL_BYTES = 1 << 16


def failure_of(error: Exception, work: Path) -> dict[str, Any]:
    """`kind`, `what`, `field` and `fix` of an error, whether it is one of ours or not; a full disk is named as such."""
    if isinstance(error, RLoopError):
        return error_as_data(error)
    if reason := _disk_trouble(error, work):
        return {"kind": "StoreError", "what": reason, "field": str(work), "fix": FREE_SPACE}
    return {"kind": type(error).__name__, "what": printable_line(str(error)), "field": None, "fix": None}


def is_full(work: Path) -> bool:
    """Whether the disk of a folder has no room left."""
    with contextlib.suppress(OSError):
        return shutil.disk_usage(work).free < _FULL_BYTES
    return False


def _disk_trouble(error: Exception, work: Path) -> str | None:
    """Why scratch cannot be written, if that is what the error is about.

    Libraries that write from native code raise kinds of their own, so their words and the disk itself count too.
    """
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
        return str(error.strerror)
    full = os.strerror(errno.ENOSPC)
    return f"{full} ({type(error).__name__})" if full in str(error) or is_full(work) else None
