"""A large file through our store and through bare s3fs, on one S3 server; and the memory that it takes."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.line import Line

MIB = 1 << 20
_ROUNDS = 3

_CLIENT = """
import json, sys, time
from pathlib import Path
def peak():  # of this program alone: getrusage would begin with the peak of whoever started it
    rows = Path("/proc/self/status").read_text().splitlines()
    return next(int(row.split()[1]) for row in rows if row.startswith("VmHWM"))
who, source, target, uri = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]
if who == "rloop":
    from rloop_core.store import Store
    store = Store(uri)
    store.check_writable()
    put, get = lambda: store.upload(source, "big"), lambda: store.download("big", target)
    drop = lambda: store.delete("big")
else:
    import s3fs
    raw = s3fs.S3FileSystem(use_listings_cache=False)
    path = uri.removeprefix("s3://") + "/big"
    raw.pipe_file(path, b"ok")
    put, get = lambda: raw.put_file(str(source), path), lambda: raw.get_file(path, str(target))
    drop = lambda: raw.rm_file(path)
before = peak()
started = time.monotonic()
put()
middle = time.monotonic()
get()
ended = time.monotonic()
reached = peak()
assert target.stat().st_size == source.stat().st_size
drop()
grown = (reached - before) / 1024
print(json.dumps({"put": middle - started, "get": ended - middle, "mib": reached / 1024, "grown": grown}))
"""


def bench(size_mib: int = 1024) -> list[Line]:
    """Speed against bare s3fs, of both directions; and memory against that for a file a quarter as large.

    Args:
        size_mib: Size of the file. The server keeps it on disk: one in memory copies all of it for each range asked.
    """
    from tests.swift import swift_server

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "swift").mkdir()
        with swift_server(folder / "swift") as server:
            return _measure(folder, size_mib, {**os.environ, **server.environment})


def _measure(folder: Path, size_mib: int, environment: dict[str, str]) -> list[Line]:
    whole, quarter = _file(folder / "whole", size_mib), _file(folder / "quarter", size_mib // 4)
    found: dict[str, list[dict[str, float]]] = {"rloop": [], "s3fs": []}
    for turn in range(_ROUNDS):
        # In turns, and in changing order: what else the machine does falls on both.
        for who in ("rloop", "s3fs") if turn % 2 else ("s3fs", "rloop"):
            found[who].append(_transfer(who, whole, environment))
    small = _transfer("rloop", quarter, environment)
    lines = []
    for way in ("put", "get"):
        ours, theirs = (statistics.median(one[way] for one in found[who]) for who in ("rloop", "s3fs"))
        detail = f"{size_mib / ours:.0f} against {size_mib / theirs:.0f} MiB/s, {size_mib} MiB, median of {_ROUNDS}"
        lines.append(Line(f"store: {way} against bare s3fs", theirs / ours, 0.9, "x", detail, at_least=True))
    most, bare = (max(found[who], key=lambda one: one["grown"]) for who in ("rloop", "s3fs"))
    detail = f"{small['grown']:.0f} MiB for {size_mib // 4} MiB; bare s3fs {bare['grown']:.0f} MiB"
    lines.append(Line(f"store: memory added to move {size_mib} MiB", most["grown"], 100.0, "MiB", detail))
    detail = f"{most['mib']:.0f} against {small['mib']:.0f} MiB, the whole program"
    lines.append(
        Line(f"store: peak at {size_mib} against {size_mib // 4} MiB", most["mib"] / small["mib"], 1.1, "x", detail)
    )
    return lines


def _transfer(who: str, source: Path, environment: dict[str, str]) -> dict[str, float]:
    target = source.with_name("target")
    command = [sys.executable, "-c", _CLIENT, who, str(source), str(target), "s3://rloop/run"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    target.unlink()
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def _file(path: Path, size_mib: int) -> Path:
    with open(path, "wb") as stream:
        for _ in range(size_mib):
            stream.write(os.urandom(MIB))
    return path


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=1024, help="size of the file")
    for line in bench(parser.parse_args().mib):
        print(line)
