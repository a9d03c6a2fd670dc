"""Local files that appear whole or not at all, whenever the process dies."""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

TEMPORARY = ".tmp-"
"""Prefix of the names of unfinished files."""


def is_unfinished(key: str) -> bool:
    """Return True for a file that an interrupted write left."""
    return key.rpartition("/")[2].startswith(TEMPORARY)


@contextmanager
def temporary_file(target: Path) -> Iterator[Path]:
    """Yield a temporary file in the target's folder; it is renamed to the target when the block succeeds."""
    temporary = _new_file_next_to(target)
    try:
        yield temporary
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def replace_bytes(target: Path, data: bytes, check: Callable[[], None] = lambda: None) -> None:
    """Write a file; readers see the old content or the new. `check` is called directly before the new one appears."""
    with temporary_file(target) as temporary:
        _write_synced(temporary, data)
        check()


def create_bytes(target: Path, data: bytes) -> bool:
    """Write a file if there is none, atomically among processes; return False when there is one."""
    temporary = _new_file_next_to(target)
    try:
        _write_synced(temporary, data)
        os.link(temporary, target)
    except FileExistsError:
        return False
    finally:
        temporary.unlink()
    return True


def copy_file(source: Path, target: Path, check: Callable[[], None] = lambda: None, *, replace: bool = True) -> None:
    """Copy a file and sync it to disk; without `replace`, a file that is there stays. `check`: see `replace_bytes`."""
    temporary = _new_file_next_to(target)
    try:
        with open(source, "rb") as reader, open(temporary, "wb") as writer:
            shutil.copyfileobj(reader, writer, 1 << 20)
            writer.flush()
            os.fsync(writer.fileno())
        check()
        if replace:
            temporary.replace(target)
        else:
            with contextlib.suppress(FileExistsError):
                os.link(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def _new_file_next_to(target: Path) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    path = target.parent / f"{TEMPORARY}{uuid.uuid4().hex}"
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))  # less the umask, which mkstemp ignores
    return path


def _write_synced(path: Path, data: bytes) -> None:
    with open(path, "wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
