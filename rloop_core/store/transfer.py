"""Uploads to and downloads from S3 in concurrent parts, streamed from and to disk.

s3fs holds each part and copies of it in memory, so its peak grows with the file.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from rloop_core.store import s3

T = TypeVar("T")

_CHUNK = 1 << 18
_SLOWEST_BYTES = 1 << 20
"""Bytes per second below which a transfer times out: a server may accept a PUT and never answer."""
_ABORT_SECONDS = 10.0
Take = Callable[[int, bytes], None]
"""Takes the offset of a piece and the piece."""


def upload(
    fs: Any, source: Path, path: str, patience: float, check: Callable[[], None], *, replace: bool = True
) -> None:
    """Upload a file, a large one in concurrent parts; it appears whole or not at all.

    Without `replace`, an object that is there stays, unless the file is a large one: not all servers make an object of
    parts on condition. Therefore `check` is called, in a thread, directly before that appears.
    """
    size = source.stat().st_size
    try:
        _run(fs, _upload(fs, source, size, path, check, replace), patience + size / _SLOWEST_BYTES)
    except OSError as error:
        if replace or not s3.is_refused_creation(error):
            raise


def read(fs: Any, path: str, most: int, patience: float) -> bytes | int:
    """Return the content of an object in one request, or the size of one of more than `most` bytes."""

    async def get() -> bytes | int:
        bucket, _, key = path.partition("/")
        answer = await (await _client(fs, bucket)).get_object(Bucket=bucket, Key=key)
        async with answer["Body"] as body:
            size = int(answer["ContentLength"])
            return size if size > most else bytes(await body.read())

    return _run(fs, get(), patience)


def download(
    fs: Any,
    path: str,
    size: int,
    take: Take,
    patience: float,
    persist: Callable[[Callable[[], Any]], Any],
    *,
    in_order: bool = False,
) -> None:
    """Download an object in pieces; after a broken connection only the missing bytes are requested again.

    Args:
        fs: The file system.
        path: Bucket and key.
        size: Bytes of the object.
        take: Called with each piece, each byte once.
        patience: Timeout in seconds of a request of a few bytes.
        persist: Repeats a call until it succeeds.
        in_order: Download from the first byte to the last over one connection, instead of concurrent ranges.
    """
    window = s3.RANGE_BYTES * s3.RANGES_AT_ONCE
    step = window if in_order else s3.RANGE_BYTES
    lock, closed = threading.Lock(), False

    def take_until_closed(offset: int, piece: bytes) -> None:
        with lock:
            if not closed:
                take(offset, piece)

    try:
        for begin in range(0, size, window):
            end = min(begin + window, size)
            missing = [[start, min(start + step, end)] for start in range(begin, end, step)]
            timeout = patience + (end - begin) / _SLOWEST_BYTES
            persist(partial(_download_ranges, fs, path, missing, take_until_closed, timeout))
    finally:
        with lock:  # after Ctrl-C the event loop's thread may still download, and the caller closes the file
            closed = True


def _download_ranges(fs: Any, path: str, missing: list[list[int]], take: Take, timeout: float) -> None:
    _run(fs, _get_ranges(fs, path, missing, take), timeout)


def _run(fs: Any, work: Coroutine[Any, Any, T], timeout: float) -> T:
    """Run a coroutine in the file system's event loop, and cancel it on timeout; fsspec's own helper does not."""
    from botocore.exceptions import ClientError
    from s3fs.errors import translate_boto_error  # type: ignore[import-untyped]

    future = asyncio.run_coroutine_threadsafe(asyncio.wait_for(work, timeout), fs.loop)
    try:
        return future.result()
    except ClientError as error:
        raise translate_boto_error(error) from error
    finally:
        future.cancel()


async def _upload(fs: Any, source: Path, size: int, path: str, check: Callable[[], None], replace: bool) -> None:
    bucket, _, key = path.partition("/")
    client, target = await _client(fs, bucket), {"Bucket": bucket, "Key": key}
    part = s3.part_bytes(size)
    if size < 2 * part:
        with _Part(source, 0, size) as body:
            condition = {} if replace else {"IfNoneMatch": "*"}
            await client.put_object(**target, Body=body, ContentLength=size, **condition)
        return
    target["UploadId"] = (await client.create_multipart_upload(**target))["UploadId"]
    free = asyncio.Semaphore(s3.PARTS_AT_ONCE)

    async def send(begin: int) -> dict[str, Any]:
        number, length = begin // part + 1, min(part, size - begin)
        async with free:
            with _Part(source, begin, length) as body:
                sent = await client.upload_part(**target, PartNumber=number, Body=body, ContentLength=length)
        return {"PartNumber": number, "ETag": sent["ETag"]}

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(send(begin)) for begin in range(0, size, part)]
        parts = {"Parts": [task.result() for task in tasks]}
        await asyncio.to_thread(check)
        await client.complete_multipart_upload(**target, MultipartUpload=parts)
    except BaseException as error:
        with contextlib.suppress(Exception):
            await asyncio.wait_for(client.abort_multipart_upload(**target), _ABORT_SECONDS)
        if isinstance(error, BaseExceptionGroup):
            raise error.exceptions[0] from None
        raise


async def _get_ranges(fs: Any, path: str, missing: list[list[int]], take: Take) -> None:
    """Request the missing [start, end) ranges concurrently, and advance each start by the bytes received."""
    bucket, _, key = path.partition("/")
    client = await _client(fs, bucket)

    async def get(span: list[int]) -> None:
        if span[0] == span[1]:
            return
        answer = await client.get_object(Bucket=bucket, Key=key, Range=f"bytes={span[0]}-{span[1] - 1}")
        async with answer["Body"] as body:
            if answer["ContentLength"] != span[1] - span[0]:
                raise ConnectionError(f"{answer['ContentLength']} bytes came of {span[1] - span[0]}")
            while piece := await body.read(_CHUNK):
                take(span[0], piece)
                span[0] += len(piece)
        if span[0] != span[1]:
            raise ConnectionError(f"{span[1] - span[0]} bytes did not come")

    for outcome in await asyncio.gather(*map(get, missing), return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome


async def _client(fs: Any, bucket: str) -> Any:
    await fs.set_session()
    return await fs.get_s3(bucket)


class _Part(io.RawIOBase):
    """A range of a file as a file object that reads from disk as it is sent."""

    def __init__(self, source: Path, begin: int, length: int) -> None:
        self._file = open(source, "rb", buffering=0)  # noqa: SIM115 - closed with this one
        self._begin, self._length, self._at = begin, length, 0

    def read(self, size: int = -1, /) -> bytes:
        left = self._length - self._at
        data = os.pread(self._file.fileno(), left if size < 0 else min(size, left), self._begin + self._at)
        self._at += len(data)
        return data

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._length}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        self._file.close()
        super().close()
