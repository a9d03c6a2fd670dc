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

_SERVER = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print("{}:{}".format(*server.get_host_and_port()), flush=True)
sys.stdin.readline()
"""

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
grown = peak() - before
assert target.stat().st_size == source.stat().st_size
drop()
print(json.dumps({"put": middle - started, "get": ended - middle, "mib": grown / 1024}))
"""


def bench(size_mib: int = 256) -> list[Line]:
    """Speed against bare s3fs, of both directions; and memory of a file against that of one a quarter as large.

    Args:
        size_mib: Size of the file. The server keeps it in memory.
    """
    server = subprocess.Popen(
        [sys.executable, "-c", _SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert server.stdout
        environment = _environment(server.stdout.readline().strip())
        with tempfile.TemporaryDirectory() as folder:
            return _measure(Path(folder), size_mib, environment)
    finally:
        server.kill()
        server.wait()


def _measure(folder: Path, size_mib: int, environment: dict[str, str]) -> list[Line]:
    _bucket(environment)
    whole, quarter = _file(folder / "whole", size_mib), _file(folder / "quarter", size_mib // 4)
    found: dict[str, list[dict[str, float]]] = {"rloop": [], "s3fs": []}
    for turn in range(_ROUNDS):
        # In turns, and in changing order: what else the machine does falls on both.
        for who in ("rloop", "s3fs") if turn % 2 else ("s3fs", "rloop"):
            found[who].append(_transfer(who, whole, environment))
    small = _transfer("rloop", quarter, environment)["mib"]
    lines = []
    for way in ("put", "get"):
        ours, theirs = (statistics.median(one[way] for one in found[who]) for who in ("rloop", "s3fs"))
        detail = f"{size_mib / ours:.0f} against {size_mib / theirs:.0f} MiB/s, {size_mib} MiB, median of {_ROUNDS}"
        lines.append(Line(f"store: {way} against bare s3fs", theirs / ours, 0.9, "x", detail, at_least=True))
    ours, theirs = (max(one["mib"] for one in found[who]) for who in ("rloop", "s3fs"))
    detail = f"{small:.0f} MiB for a quarter of it; bare s3fs {theirs:.0f} MiB"
    lines.append(Line(f"store: memory to move {size_mib} MiB", ours, 300.0, "MiB", detail))
    return lines


def _transfer(who: str, source: Path, environment: dict[str, str]) -> dict[str, float]:
    target = source.with_name("target")
    command = [sys.executable, "-c", _CLIENT, who, str(source), str(target), "s3://bench/run"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    target.unlink()
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def _file(path: Path, size_mib: int) -> Path:
    with open(path, "wb") as stream:
        for _ in range(size_mib):
            stream.write(os.urandom(MIB))
    return path


def _bucket(environment: dict[str, str]) -> None:
    code = "import boto3; boto3.client('s3').create_bucket(Bucket='bench')"
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)


def _environment(address: str) -> dict[str, str]:
    keys = {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench", "AWS_DEFAULT_REGION": "us-east-1"}
    here = {"AWS_ENDPOINT_URL": f"http://{address}", "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
    return {**os.environ, **keys, **here}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=1024, help="size of the file")
    for line in bench(parser.parse_args().mib):
        print(line)
