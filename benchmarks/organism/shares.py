"""`python -m benchmarks.organism.shares FOLDER...`: which styles an organism's stored samples are written in."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from benchmarks.organism.styles import detect
from rloop_core.trajectories.success import CORRECT

_ABOUT = """\
Shares and accuracies of the solution styles in stored evaluations of a bundled policy's descendants, as JSON.

  python -m benchmarks.organism.shares .rloop/store/study-rloop-*/iteration-002/evaluate/set-00"""


def shares(folders: Sequence[Path]) -> dict[str, dict[str, float]]:
    """Share of all samples and accuracy (both in [0, 1]) of each style, over the parquet files of all folders.

    Raises:
        FileNotFoundError: A folder holds none.
    """
    import pyarrow.parquet as pq

    drawn: Counter[str] = Counter()
    right: Counter[str] = Counter()
    for folder in folders:
        files = sorted(folder.glob("*.parquet"))
        if not files:
            raise FileNotFoundError(f"{folder}: no parquet files; name the folder of one set, such as .../set-00")
        for file in files:
            table = pq.read_table(file, columns=["completion", "verdict"])
            for completion, verdict in zip(table["completion"].to_pylist(), table["verdict"].to_pylist(), strict=True):
                style = detect(completion)
                drawn[style] += 1
                right[style] += verdict == CORRECT
    total = drawn.total()
    return {
        style: {"share": round(count / total, 4), "accuracy": round(right[style] / count, 4)}
        for style, count in sorted(drawn.items())
    }


def main(argv: list[str] | None = None) -> int:
    """Runs the command; returns the exit code."""
    line = argparse.ArgumentParser(
        prog="python -m benchmarks.organism.shares",
        description=_ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    line.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="with the samples of one set")
    try:
        print(json.dumps(shares(line.parse_args(argv).folders), indent=1))
    except FileNotFoundError as error:
        line.error(str(error))
    return 0


if __name__ == "__main__":
    sys.exit(main())
