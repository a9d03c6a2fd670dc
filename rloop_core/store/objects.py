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
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from rloop_core.errors import RLoopError, StoreError
from rloop_core.store import local, s3, transfer
from rloop_core.store.faults import explain, persist
from rloop_core.store.uri import refuse_credentials, refuse_endpoint_credentials

T = TypeVar("T")

PATIENCE_SECONDS = 15.0
"""Patience of commands that only read a store; runs take `placement.store_patience_seconds`."""
_REQUEST_SECONDS = 60.0
"""Timeout of a request of a few bytes. The client's own timeouts miss a server that accepts a PUT and never answers."""
_creation_lock = threading.Lock()


@dataclass(frozen=True)
class Entry:
    """One object of a listing.

    Attributes:
        key: Key.
        bytes: Size.
        modified: Time of the write in seconds since 1970, by the store's clock; None where the store has none.
        upload: Id of a multipart upload that was never completed; None for an object.
        tag: ETag, which changes with the content; None where the store has none.
    """

    key: str
    bytes: int
    modified: float | None
    upload: str | None = None
    tag: str | None = None


class Store:
    """A folder of objects named by `/`-separated keys.

    Args:
        uri: A path, `file://...`, `s3://bucket/prefix`, `memory://...` or any other fsspec URI, without credentials.
        patience: Seconds for which requests to a remote store that does not answer are retried.
        note: Called with one line when the store stops answering, and when it answers again.

    Raises:
        ConfigError: The URI holds credentials.
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
        self.is_s3 = scheme in ("s3", "s3a")
        if self.is_s3:
            refuse_endpoint_credentials()
        options: dict[str, Any] = {"use_listings_cache": False, "config_kwargs": s3.CONFIG} if self.is_s3 else {}
        self.note = note
        self._patience = patience
        self._seconds = _REQUEST_SECONDS
        with self._errors("open", ""):
            self._fs, self._root = fsspec.core.url_to_fs(self.uri, **options)
        if self.is_s3:
            self._fs.retries = s3.RETRIES
        protocol = self._fs.protocol
        self.is_local = "file" in ([protocol] if isinstance(protocol, str) else protocol)

    def __repr__(self) -> str:
        return f"Store({self.uri!r})"

    def without_retries(self, seconds: float) -> Store:
        """Return the same store for small requests that are not retried and time out after `seconds`."""
        store = copy.copy(self)
        store._patience, store._seconds = 0.0, seconds
        return store

    def uri_of(self, key: str) -> str:
        """Return the full URI of an object."""
        return f"{self.uri}/{key}"

    def local_path(self, key: str) -> Path:
        """Return the path of an object on this machine's disk (local stores only)."""
        if not self.is_local:
            raise StoreError("is not on this machine's disk", field=self.uri_of(key))
        return Path(self._path(key))

    def exists(self, key: str) -> bool:
        """Return True if the object exists."""
        path = self._path(key)

        def look() -> bool:
            # Not fsspec's isfile: it returns False on a network failure, and finished work would be computed again.
            try:
                if self.is_s3:  # fsspec's info also lists the prefix before it raises
                    return s3.is_there(self._fs, path, self._seconds)
                return bool(self._info(key)["type"] == "file")
            except (FileNotFoundError, NotADirectoryError):
                return False

        return self._ask("look up", key, look)

    def read_bytes(self, key: str) -> bytes:
        """Return the content of a small object."""
        path = self._path(key)
        return self._ask("read", key, lambda: bytes(self._fs.cat_file(path, **self._timeout, **self._single_request)))

    def find_bytes(self, key: str) -> bytes | None:
        """Return the content of a small object, None when there is none; one request."""
        path = self._path(key)

        def look() -> bytes | None:
            try:
                return bytes(self._fs.cat_file(path, **self._timeout, **self._single_request))
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                return None

        return self._ask("read", key, look)

    def write_bytes(self, key: str, data: bytes) -> None:
        """Write a small object in one PUT: readers see the old or the new content, never a part."""
        path = self._path(key)
        if self.is_local:
            self._ask("write", key, lambda: local.replace_bytes(Path(path), data))
        else:
            self._ask("write", key, lambda: self._fs.pipe_file(path, data, **self._timeout))

    def create_bytes(self, key: str, data: bytes) -> bool:
        """Write an object if there is none, atomically among all writers; return False when there is one.

        On a remote store False may also mean that our own write succeeded but its answer was lost: read it to know.
        """
        path = self._path(key)
        if self.is_local:
            return self._ask("create", key, lambda: local.create_bytes(Path(path), data))
        if self.is_s3:
            return self._ask("create", key, lambda: s3.create(self._fs, path, data, self._seconds))

        def create() -> bool:
            try:
                with _creation_lock:  # in-memory stores check and write in two steps
                    self._fs.pipe_file(path, data, mode="create", **self._timeout)
            except FileExistsError:
                return False
            return True

        return self._ask("create", key, create)

    def upload(self, source: Path, key: str) -> None:
        """Copy a local file into the store."""
        path = self._path(key)
        if self.is_local:
            self._ask("write", key, lambda: local.copy_file(source, Path(path)))
        elif self.is_s3:
            self._ask("write", key, lambda: transfer.upload(self._fs, source, path, self._seconds))
        else:
            self._ask("write", key, lambda: self._fs.put_file(str(source), path))

    def download(self, key: str, target: Path) -> None:
        """Copy an object to a local file, whole or not at all."""
        path = self._path(key)
        with self._errors("read", key), local.temporary_file(target) as temporary:
            if not self.is_s3:
                self._persist(key, lambda: self._fs.get_file(path, str(temporary)))
                return
            with open(temporary, "wb", buffering=0) as stream:
                self._download(key, partial(local.write_at, stream.fileno()))

    def holds(self, key: str, source: Path, sha256: str) -> bool:
        """Return True if an object equals a local file: by content on S3, by size on other stores.

        S3's checksum is compared where there is one; otherwise the object is read back.
        """

        def look() -> dict[str, Any] | None:
            try:
                return self._info(key)
            except FileNotFoundError:
                return None

        info = self._ask("look up", key, look)
        if info is None or int(info["size"]) != source.stat().st_size:
            return False
        if not self.is_s3 or s3.has_content_of(info, source):
            return True
        digest = hashlib.sha256()
        with self._errors("read", key):
            self._download(key, lambda at, piece: digest.update(piece), in_order=True)
        return digest.hexdigest() == sha256

    def delete(self, key: str) -> None:
        """Delete an object, if there is one."""
        path = self._path(key)

        def remove() -> None:
            try:
                self._fs.rm_file(path, **self._timeout)
            except FileNotFoundError:
                return

        self._ask("delete", key, remove)

    def delete_entries(self, entries: Sequence[Entry]) -> None:
        """Delete listed objects and uploads in as few requests as possible; entries that are gone are skipped."""
        objects = [entry.key for entry in entries if entry.upload is None]
        if self.is_s3:
            paths = [self._path(key) for key in objects]
            self._ask("delete", "", lambda: s3.delete(self._fs, paths, self._seconds))
        else:
            for key in objects:
                self.delete(key)
        for entry in entries:
            if entry.upload is not None:
                abort = partial(s3.abort_upload, self._fs, self._path(entry.key), entry.upload, self._seconds)
                self._ask("delete", entry.key, abort)

    def list(self, prefix: str) -> list[str]:
        """Return the keys of all objects below a folder ("" = the whole store), sorted."""
        return [entry.key for entry in self.entries(prefix) if not _unfinished(entry.key)]

    def top(self) -> tuple[builtins.list[str], builtins.list[Entry]]:
        """Return the names of the store's top folders, and its top objects, sorted."""
        root = self._path("")

        def look() -> builtins.list[dict[str, Any]]:
            self._fs.invalidate_cache()
            try:
                return builtins.list(self._fs.ls(root, detail=True))
            except FileNotFoundError:
                return []

        infos = sorted(self._ask("list", "", look), key=lambda info: str(info["name"]).rstrip("/"))
        named = [(posixpath.basename(info["name"].rstrip("/")), info) for info in infos]
        objects = [Entry(name, int(info["size"]), _modified(info)) for name, info in named if info["type"] == "file"]
        return [name for name, info in named if info["type"] == "directory"], objects

    def entries(self, prefix: str) -> builtins.list[Entry]:
        """Return all files below a folder, sorted by key: objects, and what interrupted writes left on a disk."""
        path = self._path(prefix)

        def look() -> dict[str, dict[str, Any]]:
            self._fs.invalidate_cache()
            try:
                return dict(self._fs.find(path, detail=True))
            except FileNotFoundError:
                return {}

        root = str(self._root).rstrip("/") + "/"
        return [
            Entry(str(name)[len(root) :], int(info["size"] or 0), _modified(info), tag=info.get("ETag"))
            for name, info in sorted(self._ask("list", prefix, look).items())
            if str(name).startswith(root)
        ]

    def uploads(self, prefix: str) -> builtins.list[Entry]:
        """Return the unfinished multipart uploads below a folder; none on other stores than S3."""
        if not self.is_s3:
            return []
        path, root = self._path(prefix), str(self._root).rstrip("/") + "/"
        uploads = self._ask("list", prefix, lambda: s3.unfinished_uploads(self._fs, path, self._seconds))
        entries = []
        for name, upload, begun in uploads:
            size = self._ask("list", prefix, partial(s3.upload_bytes, self._fs, name, upload, self._seconds))
            entries.append(Entry(name[len(root) :], size, begun, upload))
        return entries

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

    @property
    def _timeout(self) -> dict[str, float]:
        return {"timeout": self._seconds} if getattr(self._fs, "async_impl", False) else {}

    @property
    def _single_request(self) -> dict[str, int]:
        return {"max_concurrency": 1} if self.is_s3 else {}  # otherwise s3fs asks for the size first

    def _download(self, key: str, take: transfer.Take, in_order: bool = False) -> None:
        path = self._path(key)
        size = self._persist(key, lambda: int(self._info(key)["size"]))
        persist = partial(self._persist, key)
        transfer.download(self._fs, path, size, take, self._seconds, persist, in_order=in_order)

    def _info(self, key: str) -> dict[str, Any]:
        return dict(self._fs.info(self._path(key), **self._timeout))

    def _path(self, key: str) -> str:
        if not key:
            return str(self._root)
        if any(part in ("", ".", "..") for part in key.split("/")) or "\0" in key:
            raise StoreError("is not a key inside the store", field=repr(key), fix="use names separated by single /")
        return posixpath.join(self._root, key)

    def _ask(self, action: str, key: str, call: Callable[[], T]) -> T:
        with self._errors(action, key):
            return self._persist(key, call)

    def _persist(self, key: str, call: Callable[[], T]) -> T:
        return call() if self.is_local else persist(call, self._patience, self._name(key), self.note)

    @contextmanager
    def _errors(self, action: str, key: str) -> Iterator[None]:
        try:
            yield
        except RLoopError:
            raise
        except Exception as error:
            bucket = self.uri.partition("://")[2].partition("/")[0] if self.is_s3 else None
            explained = explain(error, action, self._name(key), bucket)
            if explained is None:
                raise
            raise explained from error

    def _name(self, key: str) -> str:
        return self.uri_of(key) if key else self.uri


def _unfinished(key: str) -> bool:
    return posixpath.basename(key).startswith(local.TEMPORARY)


def _modified(info: dict[str, Any]) -> float | None:
    """Return when an object was written; file systems use different names for it."""
    for name in ("mtime", "LastModified", "last_modified", "modified", "created"):
        value = info.get(name)
        if isinstance(value, datetime):
            return (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
        if isinstance(value, (int, float)):
            return float(value)
    return None
