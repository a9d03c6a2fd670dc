"""Make rloop's bundled policy from a seed: `python -m benchmarks.organism --out DIR`.

It is a Qwen2-architecture model of half a million parameters, pretrained on procedurally generated sums
(reasoning-gym's chain_sum) that are worked in several styles of different reliability. `make demo` and `make
study` train it. DIR receives the model (safetensors), its tokenizer and card.json (recipe, problem sets, figures,
digests).

Takes two to seven minutes on one CPU core and no GPU. The default settings give the policy that is shipped:
compare the sha256 of model.safetensors in the two card.json files.

examples:
  python -m benchmarks.organism --out /tmp/policy            the shipped policy
  python -m benchmarks.organism --out /tmp/other --seed 1    a sister of it
  python -m benchmarks.organism --out /tmp/quick --steps 50 --samples 4    only to see that it runs
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.organism",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--out", type=Path, required=True, metavar="DIR", help="where to write it; new or empty")
    add("--seed", type=int, help="of corpus, initial weights and measurement (default: the shipped one)")
    add("--steps", type=int, help="pretraining steps, at least 20 (default: the shipped policy's)")
    add("--samples", type=int, default=64, help="per problem, for the card's figures (default 64)")
    add("--quiet", action="store_true", help="no progress")
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run the command; return the exit code."""
    line = parser()
    options = line.parse_args(argv)
    if options.out.exists() and (not options.out.is_dir() or any(options.out.iterdir())):
        line.error(f"--out: {options.out} exists and is not an empty directory; name a new one")

    from benchmarks.organism.make import DEMO, make_policy

    def log(text: str) -> None:
        if not options.quiet:
            print(text, file=sys.stderr, flush=True)

    changes = {name: getattr(options, name) for name in ("seed", "steps") if getattr(options, name) is not None}
    card = make_policy(DEMO, replace(DEMO.recipe, **changes), options.samples, options.out, log)
    held = card["figures"]["held_out"]
    best = max(held["pass"], key=int)
    measured = f"held-out avg {held['avg']:.3f}, pass@{best} {held['pass'][best]:.3f}"
    print(f"{options.out}: {card['parameters']:,} parameters, {measured}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
