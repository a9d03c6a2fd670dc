"""`python -m benchmarks.organism.shares FOLDER...`: which styles an organism's stored samples are written in, as JSON.

Each folder has the samples of one set: .rloop/store/study-rloop-*/iteration-002/evaluate/set-00
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

from benchmarks.organism.styles import detect
from rloop_core.trajectories.success import CORRECT


def main(folders: list[str]) -> None:
    """Print the share of all samples and the accuracy, both in [0, 1], of each style."""
    import pyarrow.parquet as pq

    samples, correct = Counter[str](), Counter[str]()
    for folder in folders:
        files = sorted(Path(folder).glob("*.parquet"))
        if not files:
            sys.exit(f"{folder}: no parquet files; name the folder of one set, such as .../set-00")
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


if __name__ == "__main__":
    main(sys.argv[1:])
