"""The object store: any fsspec URI, with the guarantees that the rest of rloop needs.

An object appears whole or not at all, reads see the last write, transient failures are retried, and other failures
are raised as a one-line `StoreError`.
"""

from __future__ import annotations

import builtins
import contextlib
import copy
import hashlib
import os
import posixpath
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from rloop_core.errors import ObjectTooLarge, RLoopError, StoreError
from rloop_core.store import local, s3
from rloop_core.store.faults import explain, is_refused_creation, persist
from rloop_core.store.uri import refuse_ambiguous, refuse_credentials, refuse_endpoint_credentials

T = TypeVar("T")

PATIENCE_SECONDS = 15.0
"""Patience of commands that only read a store; runs take `placement.store_patience_seconds`."""
_REQUEST_SECONDS = 60.0
"""Timeout of a request of a few bytes. The client's own timeouts miss a server that accepts a PUT and never answers."""
MOST_BYTES = 64 << 20
"""Bytes of the largest object that is read whole: manifests, leases and records have much less."""
RANGE_BYTES = 8 << 20
RANGES_AT_ONCE = 4
"""A download holds the ranges that it asks for at once in memory."""
_creation_lock = threading.Lock()


@dataclass(frozen=True)
class Entry:
    """One object of a listing."""

    key: str
    bytes: int
    modified: float | None
    """When it was written, in seconds since 1970 by the store's clock; None where the store does not say."""
    upload: str | None = None
    """Id of an upload in parts that was never completed; None for an object."""
    tag: str | None = None
    """ETag, which changes with the content; None where the store has none."""


class Store:
    """A folder of objects named by `/`-separated keys.

    Args:
        uri: A path, `file://...`, `s3://bucket/prefix`, `memory://...` or any other fsspec URI, without credentials.
        patience: Seconds for which requests to a remote store that does not answer are retried.
        note: Called with one line when the store stops answering, and when it answers again.

    Raises:
        ConfigError: The URI holds credentials, or is ambiguous.
        StoreError: The URI names no folder, or cannot be opened.
    """

    def __init__(
        self, uri: str, patience: float = PATIENCE_SECONDS, note: Callable[[str], None] = lambda line: None
    ) -> None:
        import fsspec

        refuse_credentials(uri)
        scheme, separator, path = uri.rpartition("://")
        self.uri = f"{scheme}{separator}{path.rstrip('/')}"
        if not path.strip("/") and scheme != "memory":
            raise StoreError(f"{uri!r} names no folder", field="placement.store", fix="add one: s3://bucket/prefix")
        refuse_ambiguous(uri)
        self.is_s3 = scheme in ("s3", "s3a")
        if self.is_s3:
            refuse_endpoint_credentials()
        options: dict[str, Any] = {"use_listings_cache": False, "config_kwargs": s3.CONFIG} if self.is_s3 else {}
        self.note = note
        self._patience, self._seconds = patience, _REQUEST_SECONDS
        self._check: Callable[[], None] = lambda: None
        with self._errors("open", ""):
            self._fs, self._root = fsspec.core.url_to_fs(self.uri, **options)
        if self.is_s3:
            self._fs.retries = 1  # it would retry neither a server that is down nor one that answers 500
        protocol = self._fs.protocol
        self.is_local = "file" in ([protocol] if isinstance(protocol, str) else protocol)

    def without_retries(self, seconds: float) -> Store:
        """Return the same store for small requests that are not retried and time out after `seconds`."""
        store = copy.copy(self)
        store._patience, store._seconds = 0.0, seconds
        return store

    def guarded(self, check: Callable[[], None]) -> Store:
        """Return the same store, which calls `check` before each attempt to write or delete; its errors prevent that.

        On a disk it is called again directly before a file appears.
        """
        store, inner = copy.copy(self), self._check

        def check_both() -> None:
            inner()
            check()

        store._check = check_both
        return store

    def uri_of(self, key: str) -> str:
        """Return the full URI of an object; of the store for ""."""
        return f"{self.uri}/{key}" if key else self.uri

    def local_path(self, key: str) -> Path:
        """Return the path of an object on this machine's disk (local stores only)."""
        if not self.is_local:
            raise StoreError("is not on this machine's disk", field=self.uri_of(key))
        return Path(self._path(key))

    def exists(self, key: str) -> bool:
        """Return True if the object exists."""
        # Not fsspec's isfile: it returns False on a network failure, and finished work would be computed again.
        info = self._ask("look up", key, partial(self._find_info, key))
        return info is not None and info["type"] == "file"

    def read_bytes(self, key: str, most: int = MOST_BYTES) -> bytes:
        """Return the content of an object.

        Raises:
            ObjectTooLarge: It has more than `most` bytes.
        """
        return self._ask("read", key, partial(self._read, key, most))

    def find_bytes(self, key: str, most: int = MOST_BYTES) -> bytes | None:
        """Do as `read_bytes`, but return None when there is no object; one request."""

        def look() -> bytes | None:
            try:
                return self._read(key, most)
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                return None

        return self._ask("read", key, look)

    def write_bytes(self, key: str, data: bytes) -> None:
        """Write a small object in one PUT: readers see the old or the new content, never a part."""
        path = self._path(key)
        if self.is_local:
            self._change("write", key, lambda: local.replace_bytes(Path(path), data, self._check))
        else:
            self._change("write", key, lambda: self._fs.pipe_file(path, data, **self._timeout()))

    def create_bytes(self, key: str, data: bytes) -> bool:
        """Write an object if there is none, atomically among all writers; return False when there is one.

        On a remote store False may also mean that our own write succeeded but its answer was lost: read it to know.
        """
        path = self._path(key)

        def create() -> bool:
            if self.is_local:
                return local.create_bytes(Path(path), data)
            began = time.monotonic()
            try:
                with nullcontext() if self.is_s3 else _creation_lock:  # in-memory stores check and write in two steps
                    self._fs.pipe_file(path, data, mode="create", **self._timeout())
            except OSError as error:
                if is_refused_creation(error):
                    return False
                raise
            if not self.is_s3:
                return True
            # Some servers (OpenStack Swift) check and write in two steps, too: several simultaneous writers succeed and
            # the last one's object stays. Therefore it is read after a pause in which the others finish.
            time.sleep(2 * (time.monotonic() - began))
            try:
                return self._read(key, len(data)) == data
            except (FileNotFoundError, ObjectTooLarge):
                return False

        return self._change("create", key, create)

    def upload(self, source: Path, key: str, *, replace: bool = True) -> None:
        """Copy a local file into the store, whole or not at all; without `replace`, disks and S3 keep what is there."""
        path = self._path(key)

        def send() -> None:
            if self.is_local:
                local.copy_file(source, Path(path), self._check, replace=replace)
            elif self.is_s3:
                s3.upload(self._fs, source, path, self._seconds, replace=replace)
            else:
                self._fs.put_file(str(source), path)

        self._change("write", key, send)

    def download(self, key: str, target: Path) -> None:
        """Copy an object to a local file, whole or not at all."""
        with self._errors("read", key), local.temporary_file(target) as temporary, open(temporary, "wb") as stream:
            for piece in self._pieces(key):
                stream.write(piece)

    def holds(self, key: str, source: Path, sha256: str) -> bool:
        """Return True if an object equals a local file: by content on S3, by size on other stores.

        S3's checksum is compared where there is one; otherwise the object is read back.
        """
        info = self._ask("look up", key, partial(self._find_info, key))
        if info is None or int(info["size"]) != source.stat().st_size:
            return False
        if not self.is_s3 or s3.has_content_of(info, source):
            return True
        digest = hashlib.sha256()
        for piece in self._pieces(key):
            digest.update(piece)
        return digest.hexdigest() == sha256

    def delete(self, key: str) -> None:
        """Delete an object, if there is one."""

        def remove() -> None:
            with contextlib.suppress(FileNotFoundError):
                self._fs.rm_file(self._path(key), **self._timeout())

        self._change("delete", key, remove)

    def delete_entries(self, entries: Sequence[Entry]) -> None:
        """Delete listed objects and uploads in as few requests as possible; entries that are gone are skipped."""
        paths = [self._path(entry.key) for entry in entries if entry.upload is None]
        if self.is_s3 and paths:
            self._change("delete", "", lambda: s3.delete(self._fs, paths, self._seconds))
        for entry in entries:
            if entry.upload is not None:
                abort = partial(s3.abort_upload, self._fs, self._path(entry.key), entry.upload, self._seconds)
                self._change("delete", entry.key, abort)
            elif not self.is_s3:
                self.delete(entry.key)

    def list(self, prefix: str) -> list[str]:
        """Return the keys of all objects below a folder ("" = the whole store), sorted."""
        return [entry.key for entry in self.entries(prefix) if not local.is_unfinished(entry.key)]

    def folders(self) -> builtins.list[str]:
        """Return the names of the store's top folders, sorted."""
        infos: builtins.list[dict[str, Any]] = self._list("", partial(self._fs.ls, self._path(""), detail=True), [])
        return sorted(posixpath.basename(one["name"].rstrip("/")) for one in infos if one["type"] == "directory")

    def entries(self, prefix: str) -> builtins.list[Entry]:
        """Return all files below a folder, sorted by key: objects, and what interrupted writes left on a disk."""
        infos: dict[str, Any] = self._list(prefix, partial(self._fs.find, self._path(prefix), detail=True), {})
        root = f"{str(self._root).rstrip('/')}/"
        return [
            Entry(str(name)[len(root) :], int(info["size"] or 0), _modified(info), tag=info.get("ETag"))
            for name, info in sorted(infos.items())
            if str(name).startswith(root)
        ]

    def uploads(self, prefix: str) -> builtins.list[Entry]:
        """Return the unfinished multipart uploads below a folder; none on other stores than S3."""
        if not self.is_s3:
            return []
        path, skip = self._path(prefix), len(f"{self._root}/")
        uploads = self._ask("list", prefix, lambda: s3.unfinished_uploads(self._fs, path, self._seconds))
        return [Entry(name[skip:], 0, begun, upload) for name, upload, begun in uploads]

    def now(self) -> float:
        """Return the time by the clock that dates the store's objects, in seconds since 1970; or this machine's."""
        if self.is_s3:
            server = self._ask("look up", "", lambda: s3.server_time(self._fs, self._path(""), self._seconds))
            return time.time() if server is None else server
        if self.is_local:  # a network disk dates by its server's clock
            with contextlib.suppress(OSError), tempfile.TemporaryFile(dir=self._path("")) as probe:
                return os.fstat(probe.fileno()).st_mtime
        return time.time()

    def prune(self, prefix: str, keep: Container[str]) -> None:
        """Delete all objects below a folder but those to keep, and what interrupted writes left there."""
        self.delete_entries([entry for entry in self.entries(prefix) if entry.key not in keep])
        self.delete_entries(self.uploads(prefix))

    def check_writable(self) -> None:
        """Write, read and delete a small object.

        Raises:
            StoreError: The store is read-only, full or unreachable.
        """
        key = f".rloop-write-check-{uuid.uuid4().hex}"
        self.write_bytes(key, b"ok")
        if self.read_bytes(key) != b"ok":
            raise StoreError("does not return what was written to it", field=self.uri, fix="check the store")
        self.delete(key)

    def _timeout(self, size: int = 0) -> dict[str, float]:
        """Return the argument for asynchronous file systems that ends a request with so many bytes."""
        return {"timeout": self._seconds + size / s3.SLOWEST_BYTES} if getattr(self._fs, "async_impl", False) else {}

    def _list(self, prefix: str, call: Callable[[], T], empty: T) -> T:
        def look() -> T:
            self._fs.invalidate_cache()
            try:
                return call()
            except FileNotFoundError:
                return empty

        return self._ask("list", prefix, look)

    def _read(self, key: str, most: int) -> bytes:
        path = self._path(key)
        if self.is_s3:
            if len(content := s3.read(self._fs, path, most, self._seconds)) <= most:
                return content
        elif int(self._info(key)["size"] or 0) <= most:
            return bytes(self._fs.cat_file(path, **self._timeout()))
        what = f"has more than the {most:,} bytes that are read whole"
        raise ObjectTooLarge(what, field=self.uri_of(key), fix="delete it: nothing of rloop writes such an object here")

    def _pieces(self, key: str) -> Iterator[bytes]:
        """Yield the content of an object in order; what did not come, as its connection broke, is asked for again."""
        size = self._ask("read", key, lambda: int(self._info(key)["size"]))
        window = RANGE_BYTES * RANGES_AT_ONCE
        for begin in range(0, size, window):
            starts = range(begin, min(begin + window, size), RANGE_BYTES)
            pieces: dict[int, bytes | None] = dict.fromkeys(starts)
            self._ask("read", key, partial(self._fill, self._path(key), pieces, size))
            yield from filter(None, pieces.values())

    def _fill(self, path: str, pieces: dict[int, bytes | None], size: int) -> None:
        """Request the missing pieces of an object of so many bytes, by their offsets, at the same time."""
        starts = [start for start, piece in pieces.items() if piece is None]
        ends = [min(start + RANGE_BYTES, size) for start in starts]
        timeout = self._timeout(ends[-1] - starts[0])
        answers = self._fs.cat_ranges([path] * len(starts), starts, ends, on_error="return", **timeout)
        for start, end, answer in zip(starts, ends, answers, strict=True):
            pieces[start] = answer if isinstance(answer, bytes) and len(answer) == end - start else None
        if None in pieces.values():
            failures = [answer for answer in answers if isinstance(answer, Exception)]
            raise failures[0] if failures else ConnectionError("some bytes did not come")

    def _info(self, key: str) -> dict[str, Any]:
        path = self._path(key)
        return s3.info(self._fs, path, self._seconds) if self.is_s3 else dict(self._fs.info(path, **self._timeout()))

    def _find_info(self, key: str) -> dict[str, Any] | None:
        try:
            return self._info(key)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _path(self, key: str) -> str:
        if not key:
            return str(self._root)
        if any(part in ("", ".", "..") for part in key.split("/")) or "\0" in key:
            raise StoreError("is not a key inside the store", field=repr(key), fix="use names separated by single /")
        return posixpath.join(self._root, key)

    def _ask(self, action: str, key: str, call: Callable[[], T]) -> T:
        with self._errors(action, key):
            return call() if self.is_local else persist(call, self._patience, self.uri_of(key), self.note)

    def _change(self, action: str, key: str, call: Callable[[], T]) -> T:
        def checked() -> T:
            self._check()
            return call()

        return self._ask(action, key, checked)

    @contextmanager
    def _errors(self, action: str, key: str) -> Iterator[None]:
        try:
            yield
        except RLoopError:
            raise
        except Exception as error:
            bucket = self.uri.partition("://")[2].partition("/")[0] if self.is_s3 else None
            explained = explain(error, action, self.uri_of(key), bucket)
            if explained is None:
                raise
            raise explained from error


def _modified(info: dict[str, Any]) -> float | None:
    """Return when an object was written; file systems use different names for it."""
    for name in ("mtime", "LastModified", "last_modified", "modified", "created"):
        value = info.get(name)
        if isinstance(value, datetime):
            return (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
        if isinstance(value, (int, float)):
            return float(value)
    return None
