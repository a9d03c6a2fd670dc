"""S3 requests beyond s3fs's: conditional writes, checks of content, bulk deletion, stale uploads."""

from __future__ import annotations

import hashlib
import math
import re
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from pathlib import Path
from typing import Any

from rloop_core.store.faults import status_of

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
RETRIES = 2
"""Retries by s3fs on top of the client's; its default would try a dead server for 20 s in silence."""
PART_BYTES = 16 << 20
PARTS_AT_ONCE = 6
RANGE_BYTES = 48 << 20
RANGES_AT_ONCE = 3
"""Reads use larger ranges than writes: a server's work for a request may grow with the whole object."""
_MOST_PARTS = 10_000
_LIST_PAGE = 1000


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


def create(fs: Any, path: str, data: bytes, timeout: float) -> bool:
    """Write an object if there is none; return False when there is one. s3fs's own mode="create" works on AWS only.

    Some servers (OpenStack Swift) check and write in two steps, so that several simultaneous writers succeed and the
    last one's object stays. Therefore a writer reads the object again after a pause in which the others finish.
    """
    from botocore.exceptions import ClientError

    bucket, _, key = path.partition("/")
    began = time.monotonic()
    try:
        fs.call_s3("put_object", Bucket=bucket, Key=key, Body=data, IfNoneMatch="*", timeout=timeout)
    except (OSError, ClientError) as error:
        if is_refused_creation(error):
            return False
        raise
    time.sleep(2 * (time.monotonic() - began))
    try:
        return bool(fs.cat_file(path, max_concurrency=1, timeout=timeout) == data)
    except FileNotFoundError:
        return False


def is_refused_creation(error: BaseException) -> bool:
    """Return True if the server did not create an object because there is one, or another one is being written."""
    return isinstance(error, FileExistsError) or status_of(error) in (409, 412)


def has_content_of(info: dict[str, Any], source: Path) -> bool:
    """Return True if an object's ETag proves that it equals a file; False also where it proves nothing (KMS)."""
    tag = str(info.get("ETag", "")).strip('"')
    with open(source, "rb") as stream:
        if re.fullmatch(r"[0-9a-f]{32}", tag):
            return tag == hashlib.file_digest(stream, partial(hashlib.md5, usedforsecurity=False)).hexdigest()
        if re.fullmatch(r"[0-9a-f]{32}-\d+", tag):
            size = part_bytes(source.stat().st_size)
            parts = [
                hashlib.md5(part, usedforsecurity=False).digest() for part in iter(partial(stream.read, size), b"")
            ]
            return tag == f"{hashlib.md5(b''.join(parts), usedforsecurity=False).hexdigest()}-{len(parts)}"
    return False


def part_bytes(size: int) -> int:
    """Return the bytes of each part of an object of this size."""
    return max(PART_BYTES, math.ceil(size / _MOST_PARTS))


def delete(fs: Any, paths: Sequence[str], timeout: float) -> None:
    """Delete objects of one bucket, up to 1,000 in one request.

    Raises:
        OSError: The server did not delete some of them.
    """
    for begin in range(0, len(paths), _LIST_PAGE):
        parted = [path.partition("/") for path in paths[begin : begin + _LIST_PAGE]]
        objects = {"Objects": [{"Key": key} for _, _, key in parted], "Quiet": True}
        answer = fs.call_s3("delete_objects", Bucket=parted[0][0], Delete=objects, timeout=timeout)
        for failure in answer.get("Errors", []):
            error_class = PermissionError if failure.get("Code") == "AccessDenied" else ConnectionError
            raise error_class(f"{failure.get('Key')}: {failure.get('Message') or failure.get('Code')}")


def server_time(fs: Any, path: str, timeout: float) -> float | None:
    """Return the time by the server's clock, which dates objects, in seconds since 1970."""
    bucket, _, _ = path.partition("/")
    answer = fs.call_s3("list_objects_v2", Bucket=bucket, MaxKeys=1, timeout=timeout)
    date = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
    return parsedate_to_datetime(date).timestamp() if date else None


def unfinished_uploads(fs: Any, folder: str, timeout: float) -> list[tuple[str, str, float]]:
    """Return path, id and start (seconds since 1970) of the unfinished multipart uploads below a folder."""
    bucket, _, prefix = folder.partition("/")
    uploads: list[tuple[str, str, float]] = []
    page: dict[str, Any] = {}
    while True:
        below = f"{prefix}/" if prefix else ""
        answer = fs.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=below, timeout=timeout, **page)
        for upload in answer.get("Uploads", []):
            begun: datetime = upload["Initiated"]
            aware = begun if begun.tzinfo else begun.replace(tzinfo=UTC)
            uploads.append((f"{bucket}/{upload['Key']}", upload["UploadId"], aware.timestamp()))
        if not answer.get("IsTruncated"):
            return uploads
        page = {"KeyMarker": answer["NextKeyMarker"], "UploadIdMarker": answer.get("NextUploadIdMarker", "")}


def upload_bytes(fs: Any, path: str, upload_id: str, timeout: float) -> int:
    """Return the bytes of an unfinished upload so far (its first 1,000 parts)."""
    bucket, _, key = path.partition("/")
    answer = fs.call_s3("list_parts", Bucket=bucket, Key=key, UploadId=upload_id, timeout=timeout)
    return sum(int(part["Size"]) for part in answer.get("Parts", []))


def abort_upload(fs: Any, path: str, upload_id: str, timeout: float) -> None:
    """Abort an unfinished upload, if it still exists."""
    bucket, _, key = path.partition("/")
    try:
        fs.call_s3("abort_multipart_upload", Bucket=bucket, Key=key, UploadId=upload_id, timeout=timeout)
    except FileNotFoundError:
        return
