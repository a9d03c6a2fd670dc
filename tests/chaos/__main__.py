"""Play random fault schedules, and print one JSON line for each; `make chaos` plays two hundred."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from functools import partial
from pathlib import Path

from rloop_core.config import load_config
from rloop_core.runtime.lifetime import adopt_orphans
from tests.chaos import short_stages
from tests.chaos.play import Harness
from tests.chaos.processes import fork, preload
from tests.chaos.schedule import draw_schedule


def main() -> int:
    """Play the schedules of the seeds in several processes; return 1 if anything went wrong."""
    options = _arguments()
    for name in ("OMP_NUM_THREADS", "POLARS_MAX_THREADS"):
        os.environ.setdefault(name, "1")
    if not options.real:
        short_stages.put_in_place()
    preload(real_stages=options.real)
    with tempfile.TemporaryDirectory(prefix="rloop-chaos-", dir=options.folder) as folder:
        pids = [fork(partial(_play, options, Path(folder), player)) for player in range(options.players)]
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    return max(codes)


def _play(options: argparse.Namespace, folder: Path, player: int) -> int:
    """Play one player's share of the schedules."""
    adopt_orphans()
    folder /= str(player)
    folder.mkdir()
    small = ["iterations=1", "explore.steps=2", "problems.size=8", "evaluate.samples=2", "evaluate.k=[1]"]
    real = load_config("deployments/configs/smoke.yaml", small).model_dump(mode="json") if options.real else None
    harness = Harness(folder, real or short_stages.short_config(folder), options.where)
    wrong = 0
    try:
        harness.measure()
        for seed in range(options.seed + player, options.seed + options.count, options.players):
            outcome = harness.play(draw_schedule(seed, options.where, harness.seconds, harness.moments))
            line = {"seed": seed, "starts": outcome.starts, "seconds": round(outcome.seconds, 2)}
            line |= {"happened": {kind: count for kind, count in outcome.happened.items() if count}}
            line |= {"wrong": outcome.wrong} | ({"log": outcome.log.read_text()[-6000:]} if outcome.wrong else {})
            sys.stdout.write(f"{json.dumps(line)}\n")  # one write: several processes share the pipe
            sys.stdout.flush()
            wrong += bool(outcome.wrong)
    finally:
        harness.close()
    return 1 if wrong else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--count", type=int, default=200, help="schedules")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first")
    parser.add_argument("--players", type=int, default=1, help="processes that play side by side")
    parser.add_argument("--real", action="store_true", help="the real stages instead of bodies of milliseconds")
    parser.add_argument("--where", choices=("disk", "s3"), default="disk", help="where the stores are")
    parser.add_argument("--folder", default=None, help="where stores and logs go meanwhile")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
