"""`python -m benchmarks.organism --out DIR`: make the bundled policy again."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

_ABOUT = """\
Make one of rloop's bundled policies from a seed: a Qwen2-architecture model of half a million parameters,
pretrained on procedurally generated sums (reasoning-gym's chain_sum) that are worked in several styles of different
reliability: the one of `make demo`, or with --kind study the one of `make study`. DIR receives the model
(safetensors), its tokenizer, card.json (recipe, problem sets, figures, digests) and README.md (a model card).

Takes two to seven minutes on one CPU core and no GPU. The default settings give the policy that is shipped:
compare the sha256 of model.safetensors in the two card.json files."""

_EXAMPLES = """\
examples:
  python -m benchmarks.organism --out /tmp/policy            the shipped policy
  python -m benchmarks.organism --out /tmp/other --seed 1    a sister of it
  python -m benchmarks.organism --out /tmp/quick --steps 50 --samples 4    only to see that it runs"""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    line = argparse.ArgumentParser(
        prog="python -m benchmarks.organism",
        description=_ABOUT,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    line.add_argument("--out", type=Path, required=True, metavar="DIR", help="where to write it; new or empty")
    line.add_argument("--kind", choices=["demo", "study"], default="demo", help="which of the shipped policies")
    line.add_argument("--seed", type=int, help="of corpus, initial weights and measurement (default: the shipped one)")
    line.add_argument("--steps", type=int, help="pretraining steps (default: the shipped policy's)")
    line.add_argument("--samples", type=int, default=64, help="per problem, for the card's figures (default 64)")
    line.add_argument("--quiet", action="store_true", help="no progress bars")
    return line


def main(argv: list[str] | None = None) -> int:
    """Runs the command; returns the exit code."""
    line = parser()
    asked = line.parse_args(argv)
    if asked.out.exists() and (not asked.out.is_dir() or any(asked.out.iterdir())):
        line.error(f"--out: {asked.out} exists and is not an empty directory; name a new one")
    for name, least in (("steps", 20), ("samples", 1), ("seed", 0)):
        if getattr(asked, name) is not None and getattr(asked, name) < least:
            line.error(f"--{name}: must be at least {least}")

    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from benchmarks.organism.kinds import ORGANISMS
    from benchmarks.organism.make import make_policy

    organism = ORGANISMS[asked.kind]
    given = {name: getattr(asked, name) for name in ("seed", "steps") if getattr(asked, name) is not None}
    columns = (
        TextColumn("{task.description:<20}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, disable=asked.quiet) as shown:

        def begin(title: str, total: int) -> Callable[[int], None]:
            task = shown.add_task(title, total=total)
            return lambda done: shown.advance(task, done)

        card = make_policy(organism, replace(organism.recipe, **given), asked.samples, asked.out, begin)
    held = card["figures"]["held_out"]
    best = max(held["pass"], key=int)
    measured = f"held-out avg {held['avg']:.3f}, pass@{best} {held['pass'][best]:.3f}"
    print(f"{asked.out}: {card['parameters']:,} parameters, {measured}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
