"""Compare rloop's verifier with independent graders: `make graders`, or `python -m benchmarks.graders math_dapo ...`.

Makes an environment for each grader below `.rloop/graders`, feeds all of them the same completions, and writes the
table and every disagreement to a folder. The first run takes about half an hour; replies are kept.
"""

from __future__ import annotations

import argparse
import sys
from datetime import date
from pathlib import Path

from benchmarks.graders.compare import cases
from benchmarks.graders.corpus import corpus
from benchmarks.graders.environments import GRADERS, ROOT
from benchmarks.graders.report import write_report
from benchmarks.graders.sources import DATA


def main() -> None:
    """Run the comparison."""
    names = [grader.name for grader in GRADERS]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.graders", description=__doc__)
    parser.add_argument("grader", nargs="*", help=f"any of {', '.join(names)}; all of them by default")
    parser.add_argument("--to", type=Path, default=ROOT, help="folder of the two files written")
    parser.add_argument("--date", default=str(date.today()), help="first part of their names")
    arguments = parser.parse_args()
    chosen = arguments.grader or names
    if unknown := set(chosen) - set(names):
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    if not DATA.is_dir():
        sys.exit(f"no data in {DATA}: the problems and their worked solutions are not part of the project")
    graders = [grader for grader in GRADERS if grader.name in chosen]
    compared = cases(corpus(), graders, lambda line: print(line, flush=True))
    print(write_report(compared, arguments.to, arguments.date))


if __name__ == "__main__":
    main()
