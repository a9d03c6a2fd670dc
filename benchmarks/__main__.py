"""Run the benchmarks and print one line for each bar: `make bench`, or `python -m benchmarks explore ...`."""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Callable
from datetime import date

os.environ.setdefault("HF_HUB_OFFLINE", "1")


def main() -> None:
    from benchmarks import evaluation, explore, orchestration, recheck, similarity, store, verifier
    from benchmarks.line import Line

    benches: dict[str, Callable[[], list[Line]]] = {
        "verifier": verifier.bench,
        "similarity": similarity.bench,
        "evaluation": evaluation.bench,
        "explore": explore.bench,
        "orchestration": orchestration.bench,
        "store": store.bench,
        "recheck": recheck.bench,
    }
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bench", nargs="*", help=f"any of {', '.join(benches)}; all of them by default")
    chosen = parser.parse_args().bench or list(benches)
    unknown = set(chosen) - benches.keys()
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    print(f"{date.today()}, Python {platform.python_version()}, {os.cpu_count()} cores, {platform.machine()}")
    met = True
    for name in chosen:
        for line in benches[name]():
            print(line, flush=True)
            met &= line.met
    sys.exit(0 if met else 1)


if __name__ == "__main__":
    main()
