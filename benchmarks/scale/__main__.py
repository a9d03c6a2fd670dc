"""Measure how it all grows, part by part, and print each figure as it comes: `make scale`, or with parts and sizes.

    python -m benchmarks.scale store flow --iterations 10,100,1000 --runs 1,50

Every part is bounded in count and time; everything listens on loopback alone and is gone afterwards.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")


def main() -> None:
    parts: dict[str, Callable[[Path, argparse.Namespace], Iterator[dict[str, Any]]]] = {
        "store": _store,
        "s3": _s3,
        "flow": _flow,
        "runs": _runs,
        "record": _record,
    }
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="*", help=f"any of {', '.join(parts)}; all of them by default")
    parser.add_argument("--iterations", type=_numbers, default=[10, 100, 1000], help="of a run in a local store")
    parser.add_argument("--s3-iterations", type=_numbers, default=[10, 50], help="of a run on S3")
    parser.add_argument("--flow-iterations", type=int, default=100, help="of the run through a Prefect server")
    parser.add_argument("--runs", type=_numbers, default=[1, 50], help="side by side at one server")
    parser.add_argument("--steps", type=_numbers, default=[122, 366, 1221], help="RL steps of 8,192 rollouts")
    parser.add_argument("--folder", type=Path, help="for everything that is written; kept if given")
    arguments = parser.parse_args()
    unknown = set(arguments.part) - parts.keys()
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    print(f"{date.today()}, Python {platform.python_version()}, {os.cpu_count()} cores, {platform.machine()}")
    with tempfile.TemporaryDirectory() as name:
        folder = arguments.folder or Path(name)
        for part in arguments.part or parts:
            place = folder / part
            place.mkdir(parents=True)
            for row in parts[part](place, arguments):
                print(json.dumps({"part": part, **row}), flush=True)


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _real(place: Path) -> Path:
    from benchmarks.scale.simulated import make_real_run

    folder = place.parent / "real"
    make_real_run(folder)
    return folder


def _store(place: Path, arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    from benchmarks.scale.store import grow

    yield from grow(str(place / "store"), place, _real(place), arguments.iterations)


def _s3(place: Path, arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    from benchmarks.scale.store import grow
    from tests.swift import swift_server

    real = _real(place)
    (place / "swift").mkdir()
    with swift_server(place / "swift") as swift:
        yield from grow(f"{swift.uri}/scale", place, real, arguments.s3_iterations, {**os.environ, **swift.environment})


def _flow(place: Path, arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    from benchmarks.scale.flow import server_on, side_by_side

    real = _real(place)
    with server_on(place / "server", postgres=_postgres()) as bench:
        for iterations in (max(2, arguments.flow_iterations // 10), arguments.flow_iterations):
            yield side_by_side(bench, place, real, runs=1, iterations=iterations, seconds=0.0)


def _runs(place: Path, arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    from benchmarks.scale.flow import server_on, side_by_side

    real = _real(place)
    with server_on(place / "server", postgres=_postgres()) as bench:
        for runs in arguments.runs:
            yield side_by_side(bench, place, real, runs=runs, iterations=2, seconds=10.0)


def _postgres() -> bool:
    from tests.flows.postgres import is_installed

    return is_installed()


def _record(place: Path, arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    from benchmarks.scale.record import grow_record

    yield from grow_record(place, arguments.steps)


if __name__ == "__main__":
    main()
