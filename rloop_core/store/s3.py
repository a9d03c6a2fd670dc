"""What S3 needs beyond s3fs's plain calls: conditional writes, proof of content, deletion in bulk, stale uploads."""

from __future__ import annotations

import hashlib
import math
import re
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
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
"""The client's own patience with one request, so that a part of an upload may fail; `Store` asks again after that.

Of sums only what every S3 server knows: a request is signed with its content's SHA-256, and `Store.holds` compares what
is kept.
"""
RETRIES = 2
"""Of s3fs on top of the client's; its own default would sit on a dead server for 20 s and say nothing."""
PART_BYTES = 16 << 20
PARTS_AT_ONCE = 6
RANGE_BYTES = 48 << 20
RANGES_AT_ONCE = 3
"""Reading takes larger pieces: a server may have work with every request that grows with the whole object."""
_MOST_PARTS = 10_000
_LIST_PAGE = 1000


def is_there(fs: Any, path: str, timeout: float) -> bool:
    """Whether there is such an object.

    Raises:
        FileNotFoundError: There is none; or no such bucket.
    """
    bucket, _, key = path.partition("/")
    fs.call_s3("head_object", Bucket=bucket, Key=key, timeout=timeout)
    return True


def create(fs: Any, path: str, data: bytes, timeout: float) -> bool:
    """Write an object only if there is none; s3fs's own way to ask is understood by AWS alone.

    Some servers (OpenStack Swift) look and write in two steps, so that of those who ask at the same moment several are
    let through; the object is the last one's. So who wrote looks once more, when the others must be through.
    """
    from botocore.exceptions import ClientError

    bucket, _, key = path.partition("/")
    began = time.monotonic()
    try:
        fs.call_s3("put_object", Bucket=bucket, Key=key, Body=data, IfNoneMatch="*", timeout=timeout)
    except FileExistsError:
        return False
    except (OSError, ClientError) as error:
        if status_of(error) in (409, 412):
            return False
        raise
    time.sleep(2 * (time.monotonic() - began))
    try:
        return bool(fs.cat_file(path, max_concurrency=1, timeout=timeout) == data)
    except FileNotFoundError:
        return False


def has_content_of(info: dict[str, Any], source: Path) -> bool:
    """Whether an object's ETag proves that it is this file; False where it proves nothing (encryption by KMS)."""
    tag = str(info.get("ETag", "")).strip('"')
    if re.fullmatch(r"[0-9a-f]{32}", tag):
        return tag == _md5s(source, None)[0].hex()
    if re.fullmatch(r"[0-9a-f]{32}-\d+", tag):
        sums = _md5s(source, part_bytes(source.stat().st_size))
        return tag == f"{hashlib.md5(b''.join(sums), usedforsecurity=False).hexdigest()}-{len(sums)}"
    return False


def part_bytes(size: int) -> int:
    """Bytes of a part of an object of this size."""
    return max(PART_BYTES, math.ceil(size / _MOST_PARTS))


def delete(fs: Any, paths: Sequence[str], timeout: float) -> None:
    """Delete objects of one bucket, many in one request.

    Raises:
        OSError: The server kept some of them.
    """
    for begin in range(0, len(paths), _LIST_PAGE):
        parted = [path.partition("/") for path in paths[begin : begin + _LIST_PAGE]]
        objects = {"Objects": [{"Key": key} for _, _, key in parted], "Quiet": True}
        answer = fs.call_s3("delete_objects", Bucket=parted[0][0], Delete=objects, timeout=timeout)
        for kept in answer.get("Errors", []):
            kind = PermissionError if kept.get("Code") == "AccessDenied" else ConnectionError
            raise kind(f"{kept.get('Key')}: {kept.get('Message') or kept.get('Code')}")


def server_time(fs: Any, path: str, timeout: float) -> float | None:
    """The server's clock in seconds since 1970: the one by which objects are dated."""
    bucket, _, _ = path.partition("/")
    answer = fs.call_s3("list_objects_v2", Bucket=bucket, MaxKeys=1, timeout=timeout)
    date = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
    return parsedate_to_datetime(date).timestamp() if date else None


def unfinished_uploads(fs: Any, folder: str, timeout: float) -> list[tuple[str, str, float]]:
    """Path, id and beginning (seconds since 1970) of the multipart uploads below a folder that nobody completed."""
    bucket, _, prefix = folder.partition("/")
    found: list[tuple[str, str, float]] = []
    page: dict[str, Any] = {}
    while True:
        below = f"{prefix}/" if prefix else ""
        answer = fs.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=below, timeout=timeout, **page)
        for one in answer.get("Uploads", []):
            begun: datetime = one["Initiated"]
            aware = begun if begun.tzinfo else begun.replace(tzinfo=UTC)
            found.append((f"{bucket}/{one['Key']}", one["UploadId"], aware.timestamp()))
        if not answer.get("IsTruncated"):
            return found
        page = {"KeyMarker": answer["NextKeyMarker"], "UploadIdMarker": answer.get("NextUploadIdMarker", "")}


def upload_bytes(fs: Any, path: str, upload_id: str, timeout: float) -> int:
    """Bytes that an unfinished upload holds so far (of its first thousand parts)."""
    bucket, _, key = path.partition("/")
    answer = fs.call_s3("list_parts", Bucket=bucket, Key=key, UploadId=upload_id, timeout=timeout)
    return sum(int(part["Size"]) for part in answer.get("Parts", []))


def abort_upload(fs: Any, path: str, upload_id: str, timeout: float) -> None:
    """Drop an unfinished upload; nothing happens when it is gone."""
    bucket, _, key = path.partition("/")
    try:
        fs.call_s3("abort_multipart_upload", Bucket=bucket, Key=key, UploadId=upload_id, timeout=timeout)
    except FileNotFoundError:
        return


def _md5s(source: Path, part: int | None) -> list[bytes]:
    """MD5 of a file's parts, or of all of it: S3's own sum, no protection."""
    sums: list[bytes] = []
    with open(source, "rb") as stream:
        while True:
            digest, left = hashlib.md5(usedforsecurity=False), part
            while (left is None or left > 0) and (
                piece := stream.read(1 << 20 if left is None else min(1 << 20, left))
            ):
                digest.update(piece)
                left = None if left is None else left - len(piece)
            if left == part and part is not None:
                return sums
            sums.append(digest.digest())
            if part is None:
                return sums
