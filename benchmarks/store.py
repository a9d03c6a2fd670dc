"""A large file through our store and through bare s3fs, on one S3 server; and the memory that it takes."""

from __future__ import annotations

import os
import tempfile
import time
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.measure import Result, measured, peak_mib

SIZE_MIB = 1024
_MIB = 1 << 20
_ROUNDS = 3


def bench() -> list[Result]:
    """Compare the speed with bare s3fs in both directions, and bound the memory.

    The server keeps the file on disk: one in memory would copy all of it for each range that is asked for.
    """
    from tests.swift import swift_server

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "swift").mkdir()
        with swift_server(folder / "swift") as server:
            return _measure(folder, {**os.environ, **server.environment})


def _measure(folder: Path, environment: dict[str, str]) -> list[Result]:
    source, target = folder / "source", folder / "target"
    with open(source, "wb") as stream:
        for _ in range(SIZE_MIB):
            stream.write(os.urandom(_MIB))
    rounds: dict[str, list[dict[str, float]]] = {"rloop": [], "s3fs": []}
    for turn in range(_ROUNDS):
        # In changing order, so that the machine's other load falls on both.
        for client in ("rloop", "s3fs") if turn % 2 else ("s3fs", "rloop"):
            figures = measured("store:transfer", client, source, target, "s3://rloop/run", environment=environment)
            rounds[client].append(figures)
            target.unlink()
    results = []
    for direction in ("put", "get"):
        ours, theirs = (median(figures[direction] for figures in rounds[client]) for client in ("rloop", "s3fs"))
        detail = f"{SIZE_MIB / ours:.0f} against {SIZE_MIB / theirs:.0f} MiB/s, {SIZE_MIB} MiB, median of {_ROUNDS}"
        what = f"store: {direction} against bare s3fs"
        results.append(Result(what, theirs / ours, 0.9, "x", detail, at_least=True))
    most, bare = (max(figures["grown"] for figures in rounds[client]) for client in ("rloop", "s3fs"))
    what = f"store: memory added to move {SIZE_MIB} MiB"
    return [*results, Result(what, most, 100.0, "MiB", f"bare s3fs {bare:.0f} MiB")]


def transfer(client: str, source: str, target: str, uri: str) -> dict[str, Any]:
    """Upload a file, download it and delete it; return the seconds, and the MiB added (`grown`)."""
    if client == "rloop":
        from rloop_core.store import Store

        store = Store(uri)
        store.check_writable()
        put, get = partial(store.upload, Path(source), "big"), partial(store.download, "big", Path(target))
        delete = partial(store.delete, "big")
    else:
        import s3fs

        files = s3fs.S3FileSystem(use_listings_cache=False)
        path = uri.removeprefix("s3://") + "/big"
        files.pipe_file(path, b"ok")
        put, get = partial(files.put_file, source, path), partial(files.get_file, path, target)
        delete = partial(files.rm_file, path)
    before = peak_mib()
    started = time.monotonic()
    put()
    uploaded = time.monotonic()
    get()
    downloaded = time.monotonic()
    peak = peak_mib()
    assert Path(target).stat().st_size == Path(source).stat().st_size
    delete()
    return {"put": uploaded - started, "get": downloaded - uploaded, "grown": peak - before}
