"""Copies of remote artifacts on this machine: a folder a digest, the least recently used dropped when room is short.

Whoever uses a folder holds a shared lock on a file beside it, which the system releases when the process dies; only a
folder that can be locked alone is dropped. It is moved aside before it is deleted, so that none is ever half there.
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
"""Room for whoever has no run's config at hand; runs take `placement.cache_gb`."""
_DIGEST = re.compile(r"[0-9a-f]{64}")
_DROPPED = ".dropped-"
_held: dict[Path, int] = {}
_lock = threading.Lock()


@dataclass(frozen=True)
class Cache:
    """A folder of copies.

    Args:
        folder: Where they lie.
        limit: Bytes that all of them may take; None for no limit. What is in use stays, even beyond it.
    """

    folder: Path
    limit: int | None = DEFAULT_BYTES

    @contextmanager
    def using(self, digest: str) -> Iterator[Path]:
        """The folder of a digest, which nobody drops while the block runs; it may be empty."""
        handle = self._take(digest)
        try:
            yield self.folder / digest
        finally:
            os.close(handle)

    def keep(self, digest: str) -> Path:
        """The folder of a digest, which nobody drops while this process lives."""
        path = self.folder / digest
        with _lock:
            if path not in _held:
                _held[path] = self._take(digest)
            else:
                os.utime(_lock_file(path))
        return path

    def make_room(self, needed: int) -> None:
        """Drop what was not used for longest until so many more bytes fit under the limit, as far as possible."""
        if self.limit is None:
            return
        self._sweep()
        found = self._by_use()
        total = sum(size for _, size in found)
        for folder, size in found:
            if total + needed <= self.limit:
                return
            if self._drop(folder):
                total -= size

    def drop_oldest(self) -> bool:
        """Drop the one folder that was not used for longest; False when all are in use."""
        return any(self._drop(folder) for folder, _ in self._by_use())

    def _by_use(self) -> list[tuple[Path, int]]:
        """Folders and their bytes, the one that was not used for longest first."""
        found = []
        for folder in self.folder.iterdir() if self.folder.is_dir() else ():
            if _DIGEST.fullmatch(folder.name) and folder.is_dir():
                with contextlib.suppress(OSError):  # dropped by another process meanwhile
                    used = _lock_file(folder) if _lock_file(folder).exists() else folder
                    found.append((used.stat().st_mtime_ns, folder, _bytes_below(folder)))
        return [(folder, size) for _, folder, size in sorted(found)]

    def _take(self, digest: str) -> int:
        """A descriptor with a shared lock on the digest, marked as used now."""
        path = _lock_file(self.folder / digest)
        path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                if _locked(handle, fcntl.LOCK_EX | fcntl.LOCK_NB):  # nobody else is here: what is unfinished was left
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
        """Remove a folder and its lock file; False when anybody uses it."""
        path = _lock_file(folder)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            if not _locked(handle, fcntl.LOCK_EX | fcntl.LOCK_NB) or not _is_still(path, handle):
                return False
            aside = self.folder / f"{_DROPPED}{uuid.uuid4().hex}"
            with contextlib.suppress(FileNotFoundError):
                folder.rename(aside)
            path.unlink(missing_ok=True)
        finally:
            os.close(handle)
        shutil.rmtree(aside, ignore_errors=True)
        return True

    def _sweep(self) -> None:
        """Finish what a process began that was killed while it dropped a folder."""
        for folder in self.folder.glob(f"{_DROPPED}*"):
            shutil.rmtree(folder, ignore_errors=True)


def _lock_file(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.lock")


def _locked(handle: int, how: int) -> bool:
    try:
        fcntl.flock(handle, how)
    except BlockingIOError:
        return False
    return True


def _is_still(path: Path, handle: int) -> bool:
    """Whether a name still leads to an open file; else its lock protects nothing."""
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
