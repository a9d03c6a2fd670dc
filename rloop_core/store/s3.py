"""What S3 needs beyond s3fs's plain calls: transfers in parts of bounded memory, conditional writes, stale uploads."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from pathlib import Path
from typing import Any

from rloop_core.store.faults import status_of

CONFIG = {"connect_timeout": 5, "read_timeout": 20, "retries": {"max_attempts": 3, "mode": "standard"}}
"""The client's own patience with one request, so that a part of an upload may fail; `Store` asks again after that."""
RETRIES = 2
"""Of s3fs on top of the client's; its own default would sit on a dead server for 20 s and say nothing."""
PART_BYTES = 16 << 20
PARTS_AT_ONCE = 6
RANGE_BYTES = 48 << 20
RANGES_AT_ONCE = 3
"""Reading takes larger pieces: a server may have work with every request that grows with the whole object."""
_MOST_PARTS = 10_000
_SLOWEST_BYTES = 1 << 20
"""Bytes a second below which a transfer is given up: a server that never answers a PUT would hold us for ever."""
_LIST_PAGE = 1000


def upload(fs: Any, source: Path, path: str, patience: float) -> None:
    """Send a file, in parts side by side where it is large; it appears whole or not at all."""
    size = source.stat().st_size
    timeout = patience + size / _SLOWEST_BYTES
    fs.put_file(str(source), path, chunksize=part_bytes(size), max_concurrency=PARTS_AT_ONCE, timeout=timeout)


def read_parts(
    fs: Any, path: str, size: int, patience: float, persist: Callable[[Callable[[], Any]], Any]
) -> Iterator[bytes]:
    """An object in order, some parts at a time; a broken connection costs those parts and not the whole object.

    Args:
        fs: The file system.
        path: Bucket and key.
        size: Bytes of the object.
        patience: Seconds for a request of a few bytes.
        persist: Calls something again until it succeeds.
    """
    window = RANGE_BYTES * RANGES_AT_ONCE
    for begin in range(0, size, window):
        end = min(begin + window, size)
        got: dict[int, bytes] = {}
        timeout = patience + (end - begin) / _SLOWEST_BYTES
        persist(partial(_read_lacking, fs, path, begin, end, got, timeout))
        yield from (got[start] for start in sorted(got))


def _read_lacking(fs: Any, path: str, begin: int, end: int, got: dict[int, bytes], timeout: float) -> None:
    """Read the parts between two bytes that are not there yet, side by side; what came stays when others fail."""
    starts = [start for start in range(begin, end, RANGE_BYTES) if start not in got]
    ends = [min(start + RANGE_BYTES, end) for start in starts]
    parts = fs.cat_ranges([path] * len(starts), starts, ends, on_error="return", timeout=timeout)
    failure: BaseException | None = None
    for start, stop, part in zip(starts, ends, parts, strict=True):
        if isinstance(part, BaseException):
            failure = failure or part
        elif len(part) != stop - start:
            failure = failure or ConnectionError(f"{len(part)} bytes came of {stop - start}")
        else:
            got[start] = part
    if failure:
        raise failure


def create(fs: Any, path: str, data: bytes, timeout: float) -> bool:
    """Write an object only if there is none; s3fs's own way to ask is understood by AWS alone."""
    from botocore.exceptions import ClientError

    bucket, _, key = path.partition("/")
    try:
        fs.call_s3("put_object", Bucket=bucket, Key=key, Body=data, IfNoneMatch="*", timeout=timeout)
    except FileExistsError:
        return False
    except (OSError, ClientError) as error:
        if status_of(error) in (409, 412):
            return False
        raise
    return True


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
