"""Crash equivalence: two hundred runs, each killed, cut off, damaged or started twice at random, lose nothing.

`make chaos` plays the same schedules with a progress bar.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.wrongs import WRONGS
from tests.conftest import ROOT
from tests.swift import Swift

pytestmark = [pytest.mark.long, pytest.mark.timeout(2400)]


def _play(folder: Path, *arguments: str, server: Swift | None = None) -> list[dict[str, Any]]:
    """Return the lines that `python -m tests.chaos` printed."""
    command = [sys.executable, "-m", "tests.chaos", "--json", "--folder", str(folder), *arguments]
    environment = dict(os.environ)
    if server:
        environment |= server.environment
        command += ["--s3", server.uri, "--s3-share", "1"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr[-6000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def _check(lines: list[dict[str, Any]], schedules: int, *kinds: str) -> None:
    played = [line for line in lines if "seed" in line]
    wrong = [(line["seed"], line["wrong"], line["log"]) for line in played if line["wrong"]]
    assert not wrong, wrong
    assert len({line["seed"] for line in played}) == len(played) == schedules
    assert sum(line["starts"] for line in played) > schedules, "faults stopped runs"
    assert sum(1 for line in played if line["happened"]) > schedules // 2, "most runs were disturbed"
    happened = {kind for line in played for kind in line["happened"]}
    missing = [kind for kind in kinds if not any(name.startswith(kind) for name in happened)]
    assert not missing, (missing, happened)


KINDS = [
    *("kill flow", "terminate flow", "kill stage", "kill fork server", "second start refused"),
    *(
        f"kill {killed} at a {at}"
        for killed in ("flow", "stage", "fork server")
        for at in ("request", "step of explore")
    ),
    *(f"kill {killed} at a file of explore" for killed in ("flow", "stage", "fork server")),
    *(
        "kill stage at a file of harvest",
        "kill stage at a step of rft",
        "kill stage at a step of evaluate",
        "wipe scratch",
    ),
    *("flip", "truncate", "delete", "lease of the dead", "leftovers"),
]


@pytest.mark.timeout(7200)
def test_200_random_fault_schedules_on_disk(tmp_path: Path) -> None:
    _check(_play(tmp_path, "--count", "200", "--players", "4"), 200, *KINDS)


def test_10_random_fault_schedules_on_s3(tmp_path: Path, swift: Swift) -> None:
    lines = _play(tmp_path, "--count", "10", server=swift)
    _check(lines, 10, "S3 500", "S3 503", "S3 reset", "S3 lost", "S3 cut", "S3 slow", "S3 half")


def test_3_random_fault_schedules_with_the_real_stages(tmp_path: Path) -> None:
    _check(_play(tmp_path, "--real", "--count", "3"), 3)


def test_one_of_several_processes_that_start_a_run_computes(tmp_path: Path) -> None:
    """The others are refused with the holder's name; no stage is started twice."""
    _check_refusals(_play(tmp_path, "--together", "3", "--count", "5"), 5)


def test_one_of_two_processes_that_start_a_run_on_s3_computes(tmp_path: Path, swift: Swift) -> None:
    _check_refusals(_play(tmp_path, "--together", "2", "--count", "2", server=swift), 1)


def _check_refusals(lines: list[dict[str, Any]], at_least: int) -> None:
    played = [line for line in lines if "seed" in line]
    assert not [line for line in played if line["wrong"]], played
    assert sum(line["happened"].get("refused", 0) for line in played) >= at_least


def test_planted_wrongs_are_found(tmp_path: Path) -> None:
    """The self-check: a bad resume of each stage, lost and doubled shards, damage believed, no lease."""
    lines = _play(tmp_path, "--self-check")
    assert len(lines) == len(WRONGS) and all(line["found"] for line in lines), lines
