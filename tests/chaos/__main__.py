"""Play random fault schedules: `python -m tests.chaos --help`; `make chaos` plays two hundred with the real stages."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from rloop_core.config import load_config
from rloop_core.lifelines import adopt_orphans
from tests.chaos import short_stages, warm
from tests.chaos.play import Outcome, Stage
from tests.chaos.schedule import Schedule, draw_schedule
from tests.chaos.short_stages import short_config
from tests.swift import swift_server

SMOKE = "deployments/configs/smoke.yaml"
_LOG = 6000


def main() -> int:
    """Play, say what became of each, and end with a table; 1 when anything was wrong."""
    asked = _arguments()
    if asked.swift:
        return _beside_swift(asked.folder)
    for name in ("OMP_NUM_THREADS", "POLARS_MAX_THREADS"):
        os.environ.setdefault(name, "1")
    adopt_orphans()
    if asked.short:
        short_stages.put_in_place()
    warm.import_everything(real_stages=not asked.short)
    if asked.broken:
        short_stages.resumed_cursor = lambda checkpoint: 0
    with tempfile.TemporaryDirectory(prefix="rloop-chaos-", dir=asked.folder) as folder:
        stage = Stage(Path(folder), _config(asked, Path(folder)), asked.s3)
        try:
            return _play(asked, stage)
        finally:
            stage.close()


def _beside_swift(folder: str | None) -> int:
    """The same command with an S3 server of its own; this process has threads then, and only the other one forks."""
    arguments = [one for one in sys.argv[1:] if one != "--swift"]
    with tempfile.TemporaryDirectory(prefix="rloop-swift-", dir=folder) as data, swift_server(Path(data)) as server:
        command = [sys.executable, "-m", "tests.chaos", *arguments, "--s3", server.uri]
        return subprocess.run(command, env={**os.environ, **server.environment}, check=False).returncode


def _play(asked: argparse.Namespace, stage: Stage) -> int:
    places = ["disk"] if not asked.s3 else ["s3"] if asked.s3_share == 1 else ["disk", "s3"]
    seconds = {where: stage.measure(where) for where in places}
    rows = sum(len(rows) for rows in stage.undisturbed["trajectories"].values())
    undisturbed = ", ".join(f"{value:.1f} s on {where}" for where, value in seconds.items())
    _say(asked, {"trajectories": rows, "seconds": seconds}, f"undisturbed: {undisturbed}; {rows} trajectories")
    outcomes = []
    for seed in range(asked.seed, asked.seed + asked.count):
        on_s3 = asked.s3 and int(seed * asked.s3_share) != int((seed + 1) * asked.s3_share)
        where: Any = "s3" if on_s3 else "disk"
        if asked.together:
            one = stage.play_together(Schedule(seed, where, ()), asked.together)
        else:
            one = stage.play(draw_schedule(seed, where, seconds[where]))
        outcomes.append(one)
        happened = {kind: count for kind, count in one.happened.items() if count}
        facts = {"seed": seed, "where": where, "starts": one.starts, "seconds": round(one.seconds, 2)}
        words = ", ".join(kind if count == 1 else f"{kind} x{count}" for kind, count in happened.items()) or "nothing"
        verdict = "; ".join(one.wrong) if one.wrong else "ok"
        line = f"{seed:5}  {where:4}  {one.starts:2} starts  {one.seconds:6.1f} s  {verdict}  ({words})"
        _say(asked, {**facts, "happened": happened, "wrong": one.wrong}, line)
        if one.wrong:
            print(one.log.read_text()[-_LOG:], file=sys.stderr, flush=True)
    return _sum_up(asked, outcomes)


def _sum_up(asked: argparse.Namespace, outcomes: list[Outcome]) -> int:
    """A table of what happened, and the verdict."""
    happened = sum((one.happened for one in outcomes), Counter())
    wrong = [one.schedule.seed for one in outcomes if one.wrong]
    starts = sum(one.starts for one in outcomes)
    table = "".join(f"| {kind} | {count} |\n" for kind, count in sorted(happened.items()) if count)
    verdict = f"wrong: {', '.join(map(str, wrong))}; one again: make chaos SEED={wrong[0]} N=1" if wrong else "0 wrong"
    words = f"{len(outcomes)} schedules, {starts} starts, {sum(happened.values())} faults: {verdict}"
    _say(
        asked,
        {"schedules": len(outcomes), "starts": starts, "wrong": wrong},
        f"\n| fault | times |\n|---|---|\n{table}",
    )
    _say(asked, {"happened": dict(happened)}, words)
    return 1 if wrong else 0


def _say(asked: argparse.Namespace, facts: dict[str, Any], words: str) -> None:
    print(json.dumps(facts) if asked.json else words, flush=True)


def _config(asked: argparse.Namespace, folder: Path) -> dict[str, Any]:
    overrides = ["iterations=1", "explore.steps=2", "problems.size=8", "evaluate.samples=2", "evaluate.k=[1]"]
    config = load_config(SMOKE, overrides).model_dump(mode="json") if not asked.short else short_config(folder)
    config["placement"]["store_patience_seconds"] = 30.0
    return config


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--count", type=int, default=200, help="schedules")
    parser.add_argument("--seed", type=int, default=0, help="of the first")
    parser.add_argument("--json", action="store_true", help="a JSON object a line")
    parser.add_argument("--short", action="store_true", help="stages of milliseconds at the stage boundary")
    parser.add_argument("--s3", default=None, help="URI below which S3 stores may be made, found by the environment")
    parser.add_argument("--swift", action="store_true", help="start an S3 server for that")
    parser.add_argument("--s3-share", type=float, default=0.5, help="share of schedules on S3")
    parser.add_argument("--folder", default=None, help="where stores and logs go meanwhile")
    parser.add_argument("--together", type=int, default=0, help="no faults, but as many processes that start each run")
    parser.add_argument("--broken", action="store_true", help="resume wrongly, to see it found")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
