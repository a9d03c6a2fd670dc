"""The object store: any fsspec URI behind the few promises that the rest of rloop builds on.

An object appears whole or not at all, reads see the last write, and errors come as one `StoreError` line.
"""

from __future__ import annotations

import builtins
import errno
import os
import posixpath
import tempfile
import threading
import uuid
from collections.abc import Container, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rloop_core.errors import StoreError

_S3_CONFIG = {"connect_timeout": 5, "read_timeout": 20, "retries": {"max_attempts": 3, "mode": "standard"}}
_BRIEF_SECONDS = 60.0
"""Patience with a request of a few bytes. The client's own timeouts do not cover a server that accepts a PUT and never
answers: it would wait for ever."""
_creating = threading.Lock()
_TEMPORARY = ".tmp-"
_READING = ("read", "look up", "list", "delete")


class Store:
    """A folder of objects named by `/`-separated keys.

    Args:
        uri: A path, `file://...`, `s3://bucket/prefix`, `memory://...` or any other fsspec URI.
    """

    def __init__(self, uri: str) -> None:
        import fsspec

        scheme, separator, path = uri.rpartition("://")
        self.uri = f"{scheme}{separator}{path.rstrip('/')}"
        if not path.strip("/") and scheme != "memory":
            raise StoreError(f"{uri!r} names no folder", field="placement.store", fix="use a path or a URI")
        options: dict[str, Any] = {}
        if scheme in ("s3", "s3a"):
            options = {"use_listings_cache": False, "config_kwargs": _S3_CONFIG}
        with self._errors("open", ""):
            self._fs, self._root = fsspec.core.url_to_fs(self.uri, **options)
        self.is_local = "file" in _protocols(self._fs)
        self._brief = {"timeout": _BRIEF_SECONDS} if getattr(self._fs, "async_impl", False) else {}

    def __repr__(self) -> str:
        return f"Store({self.uri!r})"

    def uri_of(self, key: str) -> str:
        """Full URI of an object."""
        return f"{self.uri}/{key}"

    def local_path(self, key: str) -> Path:
        """Where an object lies on this machine's disk (local stores only)."""
        if not self.is_local:
            raise StoreError("is not on this machine's disk", field=self.uri_of(key))
        return Path(self._path(key))

    def exists(self, key: str) -> bool:
        """Whether the object is there now."""
        # Not fsspec's isfile: that answers False to a network failure, and a finished stage would be computed again.
        with self._errors("look up", key):
            try:
                return bool(self._fs.info(self._path(key), **self._brief)["type"] == "file")
            except (FileNotFoundError, NotADirectoryError):
                return False

    def size(self, key: str) -> int:
        """Bytes of an object."""
        with self._errors("look up", key):
            return int(self._fs.info(self._path(key), **self._brief)["size"])

    def read_bytes(self, key: str) -> bytes:
        """A whole (small) object."""
        with self._errors("read", key):
            return bytes(self._fs.cat_file(self._path(key), **self._brief))

    def write_bytes(self, key: str, data: bytes) -> None:
        """Write a small object in one PUT: readers see the old or the new one, never a part."""
        with self._errors("write", key):
            if self.is_local:
                self._replace_local(key, data)
            else:
                self._fs.pipe_file(self._path(key), data, **self._brief)

    def create_bytes(self, key: str, data: bytes) -> bool:
        """Write an object only if there is none; False when there is. Atomic among all writers."""
        with self._errors("create", key):
            if self.is_local:
                return self._create_local(key, data)
            if "s3" in _protocols(self._fs):
                return self._create_s3(key, data)
            try:
                with _creating:  # in-memory stores look and write in two steps
                    self._fs.pipe_file(self._path(key), data, mode="create", **self._brief)
            except FileExistsError:
                return False
            return True

    def upload(self, source: Path, key: str) -> None:
        """Copy a local file into the store."""
        with self._errors("write", key):
            if self.is_local:
                target = self.local_path(key)
                target.parent.mkdir(parents=True, exist_ok=True)
                with _beside(target) as temporary:
                    _copy_synced(source, temporary)
            else:
                self._fs.put_file(str(source), self._path(key))

    def download(self, key: str, target: Path) -> None:
        """Copy an object to a local file, whole or not at all."""
        with self._errors("read", key):
            target.parent.mkdir(parents=True, exist_ok=True)
            with _beside(target) as temporary:
                self._fs.get_file(self._path(key), str(temporary))

    def delete(self, key: str) -> None:
        """Remove an object; nothing happens when there is none."""
        with self._errors("delete", key):
            try:
                self._fs.rm_file(self._path(key), **self._brief)
            except FileNotFoundError:
                return

    def list(self, prefix: str) -> list[str]:
        """Keys of all objects below a folder (the whole store for ""), sorted."""
        return [key for key in self._find(prefix) if not _unfinished(key)]

    def prune(self, prefix: str, keep: Container[str]) -> None:
        """Delete every object below a folder that is not to be kept, and what interrupted writes left there."""
        for key in self._find(prefix):
            if key not in keep:
                self.delete(key)
        if "s3" in _protocols(self._fs):
            with self._errors("delete", prefix):
                self._abort_uploads(prefix)

    def check_writable(self) -> None:
        """Prove write access before anything expensive starts.

        Raises:
            StoreError: Read-only, full or unreachable store.
        """
        key = f".rloop-write-check-{uuid.uuid4().hex}"
        self.write_bytes(key, b"ok")
        if self.read_bytes(key) != b"ok":
            raise StoreError("does not return what was written to it", field=self.uri, fix="check the store")
        self.delete(key)

    def _find(self, prefix: str) -> builtins.list[str]:
        with self._errors("list", prefix):
            self._fs.invalidate_cache()
            try:
                found = self._fs.find(self._path(prefix))
            except FileNotFoundError:
                return []
        root = str(self._root).rstrip("/") + "/"
        return sorted(str(path)[len(root) :] for path in found if str(path).startswith(root))

    def _abort_uploads(self, prefix: str) -> None:
        bucket, _, folder = self._path(prefix).partition("/")
        answer = self._fs.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=f"{folder}/")
        for upload in answer.get("Uploads", []):
            self._fs.call_s3("abort_multipart_upload", Bucket=bucket, Key=upload["Key"], UploadId=upload["UploadId"])

    def _path(self, key: str) -> str:
        if not key:
            return str(self._root)
        if any(part in ("", ".", "..") for part in key.split("/")) or "\0" in key:
            raise StoreError("is not a key inside the store", field=repr(key), fix="use names separated by single /")
        return posixpath.join(self._root, key)

    def _replace_local(self, key: str, data: bytes) -> None:
        target = self.local_path(key)
        target.parent.mkdir(parents=True, exist_ok=True)
        with _beside(target) as temporary:
            _write_synced(temporary, data)

    def _create_local(self, key: str, data: bytes) -> bool:
        target = self.local_path(key)
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=_TEMPORARY)
        os.close(handle)
        temporary = Path(name)
        try:
            _write_synced(temporary, data)
            temporary.chmod(0o644)
            os.link(temporary, target)
        except FileExistsError:
            return False
        finally:
            temporary.unlink()
        return True

    def _create_s3(self, key: str, data: bytes) -> bool:
        from botocore.exceptions import ClientError

        bucket, _, name = self._path(key).partition("/")
        try:
            self._fs.call_s3("put_object", Bucket=bucket, Key=name, Body=data, IfNoneMatch="*", **self._brief)
        except FileExistsError:
            return False
        except (OSError, ClientError) as error:
            cause: BaseException | None = error if isinstance(error, ClientError) else error.__cause__
            status = getattr(cause, "response", {}).get("ResponseMetadata", {}).get("HTTPStatusCode")
            if status in (409, 412):
                return False
            raise
        return True

    @contextmanager
    def _errors(self, action: str, key: str) -> Iterator[None]:
        try:
            yield
        except StoreError:
            raise
        except FileNotFoundError as error:
            if action in _READING:
                raise StoreError(f"cannot {action}: there is no such object", field=self._name(key)) from error
            what = f"cannot {action}: its folder or bucket does not exist and cannot be made ({_reason(error)})"
            raise StoreError(
                what, field=self._name(key), fix="create it, or name another store with --store"
            ) from error
        except OSError as error:
            raise StoreError(f"cannot {action}: {_reason(error)}", field=self._name(key), fix=_remedy(error)) from error
        except (ImportError, ValueError) as error:
            raise StoreError(f"cannot {action}: {error}", field="placement.store", fix="use a path or a URI") from error
        except Exception as error:
            if not type(error).__module__.startswith(("botocore", "aiobotocore", "aiohttp", "fsspec")):
                raise
            fix = "check the endpoint, the credentials in the environment and the network"
            raise StoreError(f"cannot {action}: {error}", field=self._name(key), fix=fix) from error

    def _name(self, key: str) -> str:
        return self.uri_of(key) if key else self.uri


def _unfinished(key: str) -> bool:
    return posixpath.basename(key).startswith(_TEMPORARY)


def _protocols(filesystem: Any) -> tuple[str, ...]:
    protocol = filesystem.protocol
    return (protocol,) if isinstance(protocol, str) else tuple(protocol)


def _reason(error: OSError) -> str:
    if type(error).__name__ == "FSTimeoutError":
        return f"no answer within {_BRIEF_SECONDS:g} s"
    return error.strerror or str(error) or type(error).__name__


def _remedy(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "free disk space and start the same command again: finished work is kept"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS) or isinstance(error, PermissionError):
        return "give this user write access, or name another store with --store"
    return "check that the store is reachable, then start the same command again"


@contextmanager
def _beside(target: Path) -> Iterator[Path]:
    """A temporary file in the target's folder that becomes the target when the block succeeds."""
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=_TEMPORARY)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o644)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def _write_synced(path: Path, data: bytes) -> None:
    with open(path, "wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())


def _copy_synced(source: Path, target: Path) -> None:
    import shutil

    with open(source, "rb") as reader, open(target, "wb") as writer:
        shutil.copyfileobj(reader, writer, 1 << 20)
        writer.flush()
        os.fsync(writer.fileno())
