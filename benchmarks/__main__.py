"""Run the benchmarks and print one line for each bar: `make bench`, or `python -m benchmarks explore ...`."""

from __future__ import annotations

import argparse
import os
import platform
import sys
from datetime import date

os.environ.setdefault("HF_HUB_OFFLINE", "1")


def main() -> None:
    """Print the results of the chosen benchmarks; exit with 1 if a bar was missed."""
    from benchmarks import evaluation, explore, filter, orchestration, recheck, similarity, store, verifier

    modules = (verifier, similarity, evaluation, explore, orchestration, store, recheck, filter)
    benches = {module.__name__.removeprefix("benchmarks."): module.bench for module in modules}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bench", nargs="*", help=f"any of {', '.join(benches)}; all of them by default")
    chosen = parser.parse_args().bench or list(benches)
    if unknown := set(chosen) - benches.keys():
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    print(f"{date.today()}, Python {platform.python_version()}, {os.cpu_count()} cores, {platform.machine()}")
    met = True
    for name in chosen:
        for result in benches[name]():
            print(result, flush=True)
            met &= result.met
    sys.exit(0 if met else 1)


if __name__ == "__main__":
    main()
