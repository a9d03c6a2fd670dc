"""Play random fault schedules: `python -m tests.chaos --help`; `make chaos` plays two hundred."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

from rloop_core.config import load_config
from rloop_core.runtime.lifetime import adopt_orphans
from tests.chaos import short_stages
from tests.chaos.play import Harness, Outcome
from tests.chaos.players import Line, Progress, play_in_processes, schedule_in_words, summary
from tests.chaos.processes import fork, preload
from tests.chaos.schedule import Schedule, Where
from tests.chaos.short_stages import short_config

_SIDE_BY_SIDE = 3
SMOKE = "deployments/configs/smoke.yaml"


def main() -> int:
    """Play schedules and print each outcome and a table; return 1 if anything went wrong."""
    options = _arguments()
    if options.swift or options.players > 1:
        return _play_in_processes(options)
    for name in ("OMP_NUM_THREADS", "POLARS_MAX_THREADS"):
        os.environ.setdefault(name, "1")
    adopt_orphans()
    if not options.real:
        short_stages.put_in_place()
    preload(real_stages=options.real)
    with tempfile.TemporaryDirectory(prefix="rloop-chaos-", dir=options.folder) as folder:
        harness = Harness(Path(folder), _config(options, Path(folder)), options.s3)
        try:
            return _self_check(options, harness) if options.self_check is not None else _play(options, harness)
        finally:
            harness.close()


def _play_in_processes(options: argparse.Namespace) -> int:
    """Play with several processes, and with an S3 server if `--swift` is given."""
    seeds = _seeds(options)
    arguments = ["--real"] if options.real else []
    arguments += ["--s3-share", str(options.s3_share), "--together", str(options.together)]
    arguments += ["--s3", options.s3] if options.s3 else []
    progress, started, played = Progress(len(seeds)), time.monotonic(), []
    for line in play_in_processes(arguments, seeds, options.players, options.folder, options.swift):
        if "seed" not in line:
            continue
        played.append(line)
        progress.add(line)
        if options.json or line["wrong"] or options.real:
            _print(options, line, schedule_in_words(line))
    return _print_summary(options, played, started)


def _play(options: argparse.Namespace, harness: Harness) -> int:
    places: list[Where] = ["disk"] if not options.s3 else ["s3"] if options.s3_share == 1 else ["disk", "s3"]
    seconds = {where: harness.measure(where) for where in places}
    rows = sum(len(rows) for rows in harness.undisturbed["trajectories"].values())
    undisturbed = ", ".join(f"{value:.1f} s on {where}" for where, value in seconds.items())
    _print(options, {"trajectories": rows, "undisturbed": seconds}, f"undisturbed: {undisturbed}; {rows} trajectories")
    started, played = time.monotonic(), []
    for seed in _seeds(options):
        on_s3 = options.s3 and int(seed * options.s3_share) != int((seed + 1) * options.s3_share)
        where: Where = "s3" if on_s3 else "disk"
        if options.together:
            outcome = harness.play_together(Schedule(seed, where, ()), options.together)
        else:
            outcome = harness.play(harness.draw(seed, where))
        line = _line(outcome)
        played.append(line)
        _print(options, line, schedule_in_words(line))
    return _print_summary(options, played, started)


def _line(outcome: Outcome) -> Line:
    happened = {kind: count for kind, count in outcome.happened.items() if count}
    facts: Line = {"seed": outcome.schedule.seed, "where": outcome.schedule.where, "starts": outcome.starts}
    facts |= {"seconds": round(outcome.seconds, 2), "happened": happened, "wrong": outcome.wrong}
    return facts | ({"log": outcome.log.read_text()[-6000:]} if outcome.wrong else {})


def _print_summary(options: argparse.Namespace, played: list[Line], started: float) -> int:
    """Print the table of faults; return the exit code."""
    words, wrong = summary(played, time.monotonic() - started)
    if not options.json:
        print(words, flush=True)
    return 1 if wrong else 0


def _self_check(options: argparse.Namespace, harness: Harness) -> int:
    """Plant each wrong and see that it is found; a few are tried side by side."""
    from tests.chaos.wrongs import WRONGS, try_all

    harness.measure("disk")
    wrongs = [wrong for wrong in WRONGS if options.self_check in wrong.name]

    def try_some(part: int) -> int:
        adopt_orphans()
        missed = 0
        for wrong, played, line in try_all(harness, wrongs[part::_SIDE_BY_SIDE]):
            seeds = [outcome.schedule.seed for outcome in played]
            missed += not line
            facts = {"wrong": wrong.name, "seeds": seeds, "found": line, "said": [outcome.wrong for outcome in played]}
            _print(options, facts, f"{wrong.name}: {line or 'NOT FOUND'} (seed {', '.join(map(str, seeds))})")
        return 1 if missed else 0

    pids = [fork(partial(try_some, part)) for part in range(_SIDE_BY_SIDE)]
    return max(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids)


def _print(options: argparse.Namespace, facts: dict[str, Any], words: str) -> None:
    sys.stdout.write(f"{json.dumps(facts) if options.json else words}\n")  # one write: several processes share the pipe
    sys.stdout.flush()


def _seeds(options: argparse.Namespace) -> list[int]:
    return list(range(options.seed, options.seed + options.count * options.every, options.every))


def _config(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    overrides = ["iterations=1", "explore.steps=2", "problems.size=8", "evaluate.samples=2", "evaluate.k=[1]"]
    config = load_config(SMOKE, overrides).model_dump(mode="json") if options.real else short_config(folder)
    config["placement"]["store_patience_seconds"] = 30.0
    return config


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--count", type=int, default=200, help="schedules")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first")
    parser.add_argument("--every", type=int, default=1, help="step from one seed to the next")
    parser.add_argument("--players", type=int, default=1, help="processes that play side by side")
    parser.add_argument("--json", action="store_true", help="a JSON object a line")
    parser.add_argument("--real", action="store_true", help="the real stages instead of bodies of milliseconds")
    parser.add_argument("--s3", default=None, help="URI below which S3 stores may be made, found by the environment")
    parser.add_argument("--swift", action="store_true", help="start an S3 server for that")
    parser.add_argument("--s3-share", type=float, default=0.5, help="share of schedules on S3")
    parser.add_argument("--folder", default=None, help="where stores and logs go meanwhile")
    parser.add_argument("--together", type=int, default=0, help="no faults, but so many processes that start each run")
    parser.add_argument(
        "--self-check",
        nargs="?",
        const="",
        help="plant wrongs and see each found; or those with this text in their name",
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
