"""Compare rloop's verifier with independent graders: `make graders`, or `python -m benchmarks.graders math_dapo ...`.

Makes an environment for each grader below `.rloop/graders`, feeds all of them the same completions, and writes the
table and every disagreement to a folder. The first run takes about half an hour; replies are kept.
"""

from __future__ import annotations

import argparse
import sys
from datetime import date
from pathlib import Path

from benchmarks.graders.corpus import corpus
from benchmarks.graders.golds import DATA
from benchmarks.graders.grading import GRADERS, ROOT, cases
from benchmarks.graders.report import write_report
from benchmarks.measure import parse_names


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.graders", description=__doc__)
    parser.add_argument("--to", type=Path, default=ROOT, help="folder of the two files written")
    parser.add_argument("--date", default=str(date.today()), help="first part of their names")
    arguments = parse_names(parser, "grader", [grader.name for grader in GRADERS])
    if not DATA.is_dir():
        sys.exit(f"no data in {DATA}: the problems and their worked solutions are not part of the project")
    graders = [grader for grader in GRADERS if grader.name in arguments.grader]
    compared = cases(corpus(), graders, lambda line: print(line, flush=True))
    print(write_report(compared, arguments.to, arguments.date))


if __name__ == "__main__":
    main()
