"""S3 beyond what fsspec's interface offers: files in parts, checks of content, bulk deletion, unfinished uploads."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Sequence
from datetime import UTC
from email.utils import parsedate_to_datetime
from functools import partial
from pathlib import Path
from typing import Any

from rloop_core.store.faults import is_refused_creation, status_of

CONFIG = {
    "connect_timeout": 5,
    "read_timeout": 20,
    "retries": {"max_attempts": 3, "mode": "standard"},
    "request_checksum_calculation": "when_required",
    "response_checksum_validation": "when_required",
}
"""The client's own timeouts and retries of one request; `Store` retries after that.

Checksums are limited to those of every S3 server: a request is signed with its content's SHA-256, and `Store.holds`
compares what was stored.
"""
PART_BYTES = 16 << 20
PARTS_AT_ONCE = 3
"""s3fs keeps the parts that it sends at once in memory."""
SLOWEST_BYTES = 1 << 20
"""Bytes per second below which a transfer times out: a server may accept a PUT and never answer."""
_MOST_PARTS = 10_000
_LIST_PAGE = 1000


def upload(fs: Any, source: Path, path: str, timeout: float, *, replace: bool) -> None:
    """Upload a file, a large one in parts; it appears whole or not at all. Without `replace`, an object stays."""
    size = source.stat().st_size
    how = {"chunksize": part_bytes(size), "max_concurrency": PARTS_AT_ONCE, "timeout": timeout + size / SLOWEST_BYTES}
    put = partial(fs.put_file, str(source), path, **how)
    try:
        put(mode="overwrite" if replace else "create")
    except OSError as error:
        if status_of(error) == 501:  # a server that makes no object of parts on condition
            put()
        elif replace or not is_refused_creation(error):
            raise


def part_bytes(size: int) -> int:
    """Return the bytes of each part of an object of this size; one of less than two parts is sent whole."""
    return max(PART_BYTES, math.ceil(size / _MOST_PARTS))


def read(fs: Any, path: str, most: int, timeout: float) -> bytes:
    """Return the content of an object in one request; of one with more than `most` bytes, one byte more than that."""
    try:
        return bytes(fs.cat_file(path, start=0, end=most + 1, timeout=timeout))
    except OSError as error:
        if status_of(error) == 416:  # it is empty
            return b""
        raise


def info(fs: Any, path: str, timeout: float) -> dict[str, Any]:
    """Return an object's type, size and ETag in one request; fsspec's own also lists the prefix of a missing one.

    Raises:
        FileNotFoundError: There is no such object, or no such bucket.
    """
    bucket, _, key = path.partition("/")
    try:
        head = fs.call_s3("head_object", Bucket=bucket, Key=key, timeout=timeout)
    except OSError as error:
        if status_of(error) in (400, 403):  # an answer to HEAD has no body, which would name the reason
            fs.call_s3("get_object", Bucket=bucket, Key=key, Range="bytes=0-0", timeout=timeout)
        raise
    return {"type": "file", "size": head["ContentLength"], "ETag": head.get("ETag", "")}


def has_content_of(info: dict[str, Any], source: Path) -> bool:
    """Return True if an object's ETag proves that it equals a file; False also where it proves nothing (KMS)."""
    tag = str(info.get("ETag", "")).strip('"')
    md5 = partial(hashlib.md5, usedforsecurity=False)
    with open(source, "rb") as stream:
        if re.fullmatch(r"[0-9a-f]{32}", tag):
            return tag == hashlib.file_digest(stream, md5).hexdigest()
        if re.fullmatch(r"[0-9a-f]{32}-\d+", tag):
            size = part_bytes(source.stat().st_size)
            parts = [md5(part).digest() for part in iter(partial(stream.read, size), b"")]
            return tag == f"{md5(b''.join(parts)).hexdigest()}-{len(parts)}"
    return False


def delete(fs: Any, paths: Sequence[str], timeout: float) -> None:
    """Delete objects of one bucket, up to 1,000 in one request. s3fs's own bulk deletion hides what failed.

    Raises:
        OSError: The server did not delete some of them.
    """
    for begin in range(0, len(paths), _LIST_PAGE):
        bucket = paths[begin].partition("/")[0]
        keys = [{"Key": path.partition("/")[2]} for path in paths[begin : begin + _LIST_PAGE]]
        answer = fs.call_s3("delete_objects", Bucket=bucket, Delete={"Objects": keys, "Quiet": True}, timeout=timeout)
        for failure in answer.get("Errors", []):
            error_class = PermissionError if failure.get("Code") == "AccessDenied" else ConnectionError
            raise error_class(f"{failure.get('Key')}: {failure.get('Message') or failure.get('Code')}")


def server_time(fs: Any, path: str, timeout: float) -> float | None:
    """Return the time by the server's clock, which dates objects, in seconds since 1970."""
    answer = fs.call_s3("list_objects_v2", Bucket=path.partition("/")[0], MaxKeys=1, timeout=timeout)
    date = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
    return parsedate_to_datetime(date).timestamp() if date else None


def unfinished_uploads(fs: Any, folder: str, timeout: float) -> list[tuple[str, str, float]]:
    """Return path, id and start (seconds since 1970) of the first 1,000 unfinished uploads in parts below a folder."""
    bucket, _, prefix = folder.partition("/")
    below = f"{prefix}/" if prefix else ""
    answer = fs.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=below, timeout=timeout)
    return [
        (f"{bucket}/{one['Key']}", one["UploadId"], one["Initiated"].replace(tzinfo=UTC).timestamp())
        for one in answer.get("Uploads", [])
    ]


def abort_upload(fs: Any, path: str, upload_id: str, timeout: float) -> None:
    """Abort an unfinished upload, if it still exists."""
    bucket, _, key = path.partition("/")
    try:
        fs.abort_mpu(bucket, key, upload_id, timeout=timeout)
    except FileNotFoundError:
        return
