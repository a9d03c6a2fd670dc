"""A large file through our store and through bare s3fs, on one S3 server; and the memory that it takes."""

from __future__ import annotations

import os
import tempfile
import time
from functools import lru_cache, partial
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.measure import Result, measured, peak_mib

SIZE_MIB = 512
_MIB = 1 << 20
_ROUNDS = 3


def bench() -> list[Result]:
    """Compare the speed with bare s3fs in both directions, and the memory with that for a file a quarter as large."""
    from moto.s3.models import FakeKey

    from tests.s3 import s3_server

    # moto would copy all of an object for each range that is asked for.
    read = lru_cache(maxsize=1)(FakeKey.value.fget)
    FakeKey.value = property(lambda key: read(key), FakeKey.value.fset)
    with tempfile.TemporaryDirectory() as name, s3_server() as environment:
        return _measure(Path(name), os.environ | environment)


def _measure(folder: Path, environment: dict[str, str]) -> list[Result]:
    whole, quarter = _file(folder / "whole", SIZE_MIB), _file(folder / "quarter", SIZE_MIB // 4)
    rounds: dict[str, list[dict[str, float]]] = {"rloop": [], "s3fs": []}
    for turn in range(_ROUNDS):
        # In changing order, so that the machine's other load falls on both.
        for client in ("rloop", "s3fs") if turn % 2 else ("s3fs", "rloop"):
            rounds[client].append(_transfer(client, whole, environment))
    small = _transfer("rloop", quarter, environment)
    results = []
    for direction in ("put", "get"):
        ours, theirs = (median(figures[direction] for figures in rounds[client]) for client in ("rloop", "s3fs"))
        detail = f"{SIZE_MIB / ours:.0f} against {SIZE_MIB / theirs:.0f} MiB/s, {SIZE_MIB} MiB, median of {_ROUNDS}"
        what = f"store: {direction} against bare s3fs"
        results.append(Result(what, theirs / ours, 0.9, "x", detail, at_least=True))
    most, bare = (max(rounds[client], key=lambda figures: figures["grown"]) for client in ("rloop", "s3fs"))
    detail = f"{small['grown']:.0f} MiB for {SIZE_MIB // 4} MiB; bare s3fs {bare['grown']:.0f} MiB"
    results.append(Result(f"store: memory added to move {SIZE_MIB} MiB", most["grown"], 100.0, "MiB", detail))
    detail = f"{most['mib']:.0f} against {small['mib']:.0f} MiB, the whole program"
    what = f"store: peak at {SIZE_MIB} against {SIZE_MIB // 4} MiB"
    return [*results, Result(what, most["mib"] / small["mib"], 1.1, "x", detail)]


def _transfer(client: str, source: Path, environment: dict[str, str]) -> dict[str, float]:
    target = source.with_name("target")
    figures = measured("store:transfer", client, source, target, "s3://rloop-test/run", environment=environment)
    target.unlink()
    return figures


def transfer(client: str, source: str, target: str, uri: str) -> dict[str, Any]:
    """Upload a file, download it and delete it; return the seconds, and MiB in all (`mib`) and added (`grown`)."""
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
    return {"put": uploaded - started, "get": downloaded - uploaded, "mib": peak, "grown": peak - before}


def _file(path: Path, size_mib: int) -> Path:
    with open(path, "wb") as stream:
        for _ in range(size_mib):
            stream.write(os.urandom(_MIB))
    return path
