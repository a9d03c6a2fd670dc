"""Measure how it all grows, part by part, and print each figure as it comes: `make scale`, or with parts and sizes.

    python -m benchmarks.scale store flow --iterations 10,100,1000 --runs 1,50

Every part is bounded in count and time; everything listens on loopback alone and is gone afterwards.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.measure import machine, parse_names

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
PARTS = ("store", "s3", "flow", "runs", "record")


def main() -> None:
    """Run the chosen parts; print one line of JSON for each row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--iterations", type=_numbers, default=[10, 100, 1000], help="of a run in a local store")
    add("--s3-iterations", type=_numbers, default=[10, 50], help="of a run on S3")
    add("--flow-iterations", type=int, default=100, help="of the run through a Prefect server")
    add("--runs", type=_numbers, default=[1, 50], help="side by side at one server")
    add("--steps", type=_numbers, default=[122, 366, 1221], help="RL steps of 8,192 rollouts")
    add("--folder", type=Path, help="for everything that is written; kept if given")
    options = parse_names(parser, "part", PARTS)
    print(machine())
    with tempfile.TemporaryDirectory() as name:
        folder = options.folder or Path(name)
        for part in options.part:
            place = folder / part
            place.mkdir(parents=True)
            for row in _rows(part, place, options):
                print(json.dumps({"part": part, **row}), flush=True)


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _rows(part: str, place: Path, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    from benchmarks.scale.flow import server_on, side_by_side
    from benchmarks.scale.record import grow_record
    from benchmarks.scale.simulated import make_real_run
    from benchmarks.scale.store import grow
    from tests.flows.postgres import is_installed
    from tests.swift import swift_server

    if part == "record":
        yield from grow_record(place, options.steps)
        return
    real = make_real_run(place.parent / "real")
    if part == "store":
        yield from grow(str(place / "store"), place, real, options.iterations)
    elif part == "s3":
        (place / "swift").mkdir()
        with swift_server(place / "swift") as swift:
            environment = {**os.environ, **swift.environment}
            yield from grow(f"{swift.uri}/scale", place, real, options.s3_iterations, environment)
    else:
        sizes = [{"runs": runs, "iterations": 2, "seconds": 10.0} for runs in options.runs]
        if part == "flow":
            lengths = (max(2, options.flow_iterations // 10), options.flow_iterations)
            sizes = [{"runs": 1, "iterations": length, "seconds": 0.0} for length in lengths]
        with server_on(place / "server", postgres=is_installed()) as server:
            for size in sizes:
                yield side_by_side(server, place, real, **size)


if __name__ == "__main__":
    main()
