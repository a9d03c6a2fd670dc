"""Files to and from S3, in parts side by side: streamed from disk and to it, so that no part is ever held whole.

s3fs moves a part as one object in memory; then the peak is what a few parts and their copies on the way happen to take,
and grows with the file.
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
from typing import Any

from rloop_core.store import s3

_CHUNK = 1 << 18
_SLOWEST_BYTES = 1 << 20
"""Bytes a second below which a transfer is given up: a server that never answers a PUT would hold us for ever."""
_ABORT_SECONDS = 10.0
Take = Callable[[int, bytes], None]


def upload(fs: Any, source: Path, path: str, patience: float) -> None:
    """Send a file, in parts side by side where it is large; it appears whole or not at all."""
    size = source.stat().st_size
    _run(fs, _upload(fs, source, size, path), patience + size / _SLOWEST_BYTES)


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
    """Hand an object over in pieces; a broken connection costs what it had not brought yet and no more.

    Args:
        fs: The file system.
        path: Bucket and key.
        size: Bytes of the object.
        take: Called with the place of a piece and the piece, each byte once.
        patience: Seconds for a request of a few bytes.
        persist: Calls something again until it succeeds.
        in_order: From the first byte to the last, over one connection, instead of several places side by side.
    """
    window = s3.RANGE_BYTES * s3.RANGES_AT_ONCE
    step = window if in_order else s3.RANGE_BYTES
    gate, over = threading.Lock(), False

    def take_while_wanted(place: int, piece: bytes) -> None:
        with gate:
            if not over:
                take(place, piece)

    try:
        for begin in range(0, size, window):
            end = min(begin + window, size)
            lacking = [[start, min(start + step, end)] for start in range(begin, end, step)]
            timeout = patience + (end - begin) / _SLOWEST_BYTES
            persist(partial(_bring, fs, path, lacking, take_while_wanted, timeout))
    finally:
        with gate:  # after Ctrl-C the event loop's thread may still be at it, and the file will be closed
            over = True


def _bring(fs: Any, path: str, lacking: list[list[int]], take: Take, timeout: float) -> None:
    _run(fs, _ranges(fs, path, lacking, take), timeout)


def _run(fs: Any, work: Coroutine[Any, Any, None], timeout: float) -> None:
    """Do it in the file system's event loop; fsspec's own way would let it go on there when its time is up."""
    from botocore.exceptions import ClientError
    from s3fs.errors import translate_boto_error  # type: ignore[import-untyped]

    future = asyncio.run_coroutine_threadsafe(asyncio.wait_for(work, timeout), fs.loop)
    try:
        future.result()
    except ClientError as error:
        raise translate_boto_error(error) from error
    finally:
        future.cancel()


async def _upload(fs: Any, source: Path, size: int, path: str) -> None:
    bucket, _, key = path.partition("/")
    client, target = await _client(fs, bucket), {"Bucket": bucket, "Key": key}
    part = s3.part_bytes(size)
    if size < 2 * part:
        with _Part(source, 0, size) as body:
            await client.put_object(**target, Body=body, ContentLength=size)
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
        await client.complete_multipart_upload(**target, MultipartUpload=parts)
    except BaseException as error:
        with contextlib.suppress(Exception):
            await asyncio.wait_for(client.abort_multipart_upload(**target), _ABORT_SECONDS)
        if isinstance(error, BaseExceptionGroup):
            raise error.exceptions[0] from None
        raise


async def _ranges(fs: Any, path: str, lacking: list[list[int]], take: Take) -> None:
    """Bring what is lacking side by side; what came is lacking no more, even when the rest fails."""
    bucket, _, key = path.partition("/")
    client = await _client(fs, bucket)

    async def bring(span: list[int]) -> None:
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

    for outcome in await asyncio.gather(*map(bring, lacking), return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome


async def _client(fs: Any, bucket: str) -> Any:
    await fs.set_session()
    return await fs.get_s3(bucket)


class _Part(io.RawIOBase):
    """Some bytes of a file as a file of their own, read from disk as they are sent."""

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
