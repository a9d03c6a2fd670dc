"""`python -m benchmarks.organism.shares FOLDER...`: which styles an organism's stored samples are written in."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path

from benchmarks.organism.styles import detect
from rloop_core.trajectories.success import CORRECT

_ABOUT = """\
Shares and accuracies of the solution styles in stored evaluations of a bundled policy's descendants, as JSON.

  python -m benchmarks.organism.shares .rloop/store/study-rloop-*/iteration-002/evaluate/set-00"""


def main(argv: list[str] | None = None) -> int:
    """Print the share of all samples and the accuracy, both in [0, 1], of each style; return the exit code."""
    import pyarrow.parquet as pq

    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.organism.shares",
        description=_ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="with the samples of one set")
    samples: Counter[str] = Counter()
    correct: Counter[str] = Counter()
    for folder in parser.parse_args(argv).folders:
        files = sorted(folder.glob("*.parquet"))
        if not files:
            parser.error(f"{folder}: no parquet files; name the folder of one set, such as .../set-00")
        for file in files:
            for row in pq.read_table(file, columns=["completion", "verdict"]).to_pylist():
                style = detect(row["completion"])
                samples[style] += 1
                correct[style] += row["verdict"] == CORRECT
    shares = {
        style: {"share": round(count / samples.total(), 4), "accuracy": round(correct[style] / count, 4)}
        for style, count in sorted(samples.items())
    }
    print(json.dumps(shares, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
