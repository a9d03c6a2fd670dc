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
from tests.chaos import short_stages, warm
from tests.chaos.play import Outcome, Stage
from tests.chaos.players import Line, Progress, play_beside, schedule_in_words, summary
from tests.chaos.schedule import Schedule, Where
from tests.chaos.short_stages import short_config

_SIDE_BY_SIDE = 3
SMOKE = "deployments/configs/smoke.yaml"


def main() -> int:
    """Play, say what became of each, and end with a table; 1 when anything was wrong."""
    asked = _arguments()
    if asked.swift or asked.players > 1:
        return _beside(asked)
    for name in ("OMP_NUM_THREADS", "POLARS_MAX_THREADS"):
        os.environ.setdefault(name, "1")
    adopt_orphans()
    if not asked.real:
        short_stages.put_in_place()
    warm.import_everything(real_stages=asked.real)
    with tempfile.TemporaryDirectory(prefix="rloop-chaos-", dir=asked.folder) as folder:
        stage = Stage(Path(folder), _config(asked, Path(folder)), asked.s3)
        try:
            return _try_itself(asked, stage) if asked.self_check is not None else _play(asked, stage)
        finally:
            stage.close()


def _beside(asked: argparse.Namespace) -> int:
    """The same with players in processes of their own, and an S3 server where one is asked for."""
    seeds = _seeds(asked)
    arguments = ["--real"] if asked.real else []
    arguments += ["--s3-share", str(asked.s3_share), "--together", str(asked.together)]
    arguments += ["--s3", asked.s3] if asked.s3 else []
    progress, began, played = Progress(len(seeds)), time.monotonic(), []
    for line in play_beside(arguments, seeds, asked.players, asked.folder, asked.swift):
        if "seed" not in line:
            continue
        played.append(line)
        progress.add(line)
        if asked.json or line["wrong"] or asked.real:
            _say(asked, line, schedule_in_words(line))
    return _sum_up(asked, played, began)


def _play(asked: argparse.Namespace, stage: Stage) -> int:
    places: list[Where] = ["disk"] if not asked.s3 else ["s3"] if asked.s3_share == 1 else ["disk", "s3"]
    seconds = {where: stage.measure(where) for where in places}
    rows = sum(len(rows) for rows in stage.undisturbed["trajectories"].values())
    undisturbed = ", ".join(f"{value:.1f} s on {where}" for where, value in seconds.items())
    _say(asked, {"trajectories": rows, "undisturbed": seconds}, f"undisturbed: {undisturbed}; {rows} trajectories")
    began, played = time.monotonic(), []
    for seed in _seeds(asked):
        on_s3 = asked.s3 and int(seed * asked.s3_share) != int((seed + 1) * asked.s3_share)
        where: Where = "s3" if on_s3 else "disk"
        if asked.together:
            one = stage.play_together(Schedule(seed, where, ()), asked.together)
        else:
            one = stage.play(stage.draw(seed, where))
        line = _line(one)
        played.append(line)
        _say(asked, line, schedule_in_words(line))
    return _sum_up(asked, played, began)


def _line(one: Outcome) -> Line:
    happened = {kind: count for kind, count in one.happened.items() if count}
    facts: Line = {"seed": one.schedule.seed, "where": one.schedule.where, "starts": one.starts}
    facts |= {"seconds": round(one.seconds, 2), "happened": happened, "wrong": one.wrong}
    return facts | ({"log": one.log.read_text()[-6000:]} if one.wrong else {})


def _sum_up(asked: argparse.Namespace, played: list[Line], began: float) -> int:
    """A table of what happened, and the verdict."""
    words, wrong = summary(played, time.monotonic() - began)
    if not asked.json:
        print(words, flush=True)
    return 1 if wrong else 0


def _try_itself(asked: argparse.Namespace, stage: Stage) -> int:
    """Each wrong that is made on purpose must be found; a few are tried side by side."""
    from tests.chaos.wrongs import WRONGS, try_all

    stage.measure("disk")
    wrongs = [wrong for wrong in WRONGS if asked.self_check in wrong.name]

    def try_some(part: int) -> int:
        adopt_orphans()
        missed = 0
        for wrong, played, line in try_all(stage, wrongs[part::_SIDE_BY_SIDE]):
            seeds = [one.schedule.seed for one in played]
            missed += not line
            facts = {"wrong": wrong.name, "seeds": seeds, "found": line, "said": [one.wrong for one in played]}
            _say(asked, facts, f"{wrong.name}: {line or 'NOT FOUND'} (seed {', '.join(map(str, seeds))})")
        return 1 if missed else 0

    pids = [warm.fork(partial(try_some, part)) for part in range(_SIDE_BY_SIDE)]
    return max(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids)


def _say(asked: argparse.Namespace, facts: dict[str, Any], words: str) -> None:
    print(json.dumps(facts) if asked.json else words, flush=True)


def _seeds(asked: argparse.Namespace) -> list[int]:
    return list(range(asked.seed, asked.seed + asked.count * asked.every, asked.every))


def _config(asked: argparse.Namespace, folder: Path) -> dict[str, Any]:
    overrides = ["iterations=1", "explore.steps=2", "problems.size=8", "evaluate.samples=2", "evaluate.k=[1]"]
    config = load_config(SMOKE, overrides).model_dump(mode="json") if asked.real else short_config(folder)
    config["placement"]["store_patience_seconds"] = 30.0
    return config


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--count", type=int, default=200, help="schedules")
    parser.add_argument("--seed", type=int, default=0, help="of the first")
    parser.add_argument("--every", type=int, default=1, help="from one seed to the next")
    parser.add_argument("--players", type=int, default=1, help="processes that play side by side")
    parser.add_argument("--json", action="store_true", help="a JSON object a line")
    parser.add_argument(
        "--real", action="store_true", help="the real stages, not bodies of milliseconds in their place"
    )
    parser.add_argument("--s3", default=None, help="URI below which S3 stores may be made, found by the environment")
    parser.add_argument("--swift", action="store_true", help="start an S3 server for that")
    parser.add_argument("--s3-share", type=float, default=0.5, help="share of schedules on S3")
    parser.add_argument("--folder", default=None, help="where stores and logs go meanwhile")
    parser.add_argument("--together", type=int, default=0, help="no faults, but as many processes that start each run")
    parser.add_argument(
        "--self-check", nargs="?", const="", help="play runs that are wrong, to see each found; or those named so"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
