"""Local copies of remote artifacts: one folder per digest; the least recently used are dropped when room is short.

A process that uses a folder holds a shared lock on the file `<digest>.lock`, which the system releases when the process
dies. A folder is dropped only under an exclusive lock, and renamed before it is deleted: no part of it stays behind.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rloop_core.store.local import TEMPORARY

DEFAULT_BYTES = 50_000_000_000
"""Limit for commands without a config; runs take `placement.cache_gb`."""
_DIGEST = re.compile(r"[0-9a-f]{64}")
_DROPPED = ".dropped-"
_held: dict[Path, int] = {}
_lock = threading.Lock()


@dataclass(frozen=True)
class Cache:
    """A folder of copies."""

    folder: Path
    """Folder of the copies."""
    limit: int | None = DEFAULT_BYTES
    """Most bytes of all copies; None for no limit. Copies in use stay, even beyond it."""

    @contextmanager
    def using(self, digest: str) -> Iterator[Path]:
        """Yield the folder of a digest, which may be empty; it is not dropped while the block runs."""
        handle = self._take(digest)
        try:
            yield self.folder / digest
        finally:
            os.close(handle)

    def keep(self, digest: str) -> Path:
        """Return the folder of a digest; it is not dropped while this process lives."""
        path = self.folder / digest
        with _lock:
            if path not in _held:
                _held[path] = self._take(digest)
            else:
                os.utime(_lock_file(path))
        return path

    def make_room(self, needed: int) -> None:
        """Drop the least recently used copies until `needed` more bytes fit under the limit, as far as possible."""
        if self.limit is None:
            return
        for leftover in self.folder.glob(f"{_DROPPED}*"):  # of a process that was killed while it dropped a folder
            shutil.rmtree(leftover, ignore_errors=True)
        copies = self._by_use()
        total = sum(size for _, size in copies)
        for folder, size in copies:
            if total + needed <= self.limit:
                return
            if self._drop(folder):
                total -= size

    def drop_oldest(self) -> bool:
        """Drop the least recently used copy; return False when all are in use."""
        return any(self._drop(folder) for folder, _ in self._by_use())

    def _by_use(self) -> list[tuple[Path, int]]:
        """Return the folders and their bytes, the least recently used first."""
        copies = []
        for folder in self.folder.iterdir() if self.folder.is_dir() else ():
            if _DIGEST.fullmatch(folder.name) and folder.is_dir():
                with contextlib.suppress(OSError):  # dropped by another process meanwhile
                    used = _lock_file(folder) if _lock_file(folder).exists() else folder
                    copies.append((used.stat().st_mtime_ns, folder, _bytes_below(folder)))
        return [(folder, size) for _, folder, size in sorted(copies)]

    def _take(self, digest: str) -> int:
        """Lock the digest's folder for shared use, mark it as used now, and return the lock's descriptor."""
        path = _lock_file(self.folder / digest)
        path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                if _try_exclusive(handle):  # no other process: unfinished files are leftovers
                    for leftover in (self.folder / digest).rglob(f"{TEMPORARY}*"):
                        leftover.unlink(missing_ok=True)
                fcntl.flock(handle, fcntl.LOCK_SH)
                if _is_still(path, handle):
                    os.utime(handle)
                    return handle
            except BaseException:
                os.close(handle)
                raise
            os.close(handle)  # it was dropped between opening and locking

    def _drop(self, folder: Path) -> bool:
        """Delete a folder and its lock file; return False when a process uses it."""
        path = _lock_file(folder)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            if not _try_exclusive(handle) or not _is_still(path, handle):
                return False
            aside = self.folder / f"{_DROPPED}{uuid.uuid4().hex}"
            with contextlib.suppress(FileNotFoundError):
                folder.rename(aside)
            path.unlink(missing_ok=True)
        finally:
            os.close(handle)
        shutil.rmtree(aside, ignore_errors=True)
        return True


def _lock_file(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.lock")


def _try_exclusive(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_still(path: Path, handle: int) -> bool:
    """Return True if the path is still the locked file."""
    try:
        return os.path.samestat(path.stat(), os.fstat(handle))
    except FileNotFoundError:
        return False


def _bytes_below(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_size if path.is_file() else 0
    return total
