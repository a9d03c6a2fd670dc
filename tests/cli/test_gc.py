"""`rloop gc` lists the garbage, asks, deletes it, and reports what it deleted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rloop_core.cli.entry import group
from rloop_core.stages.run_record import write_run_record
from rloop_core.store import Store
from tests.conftest import ROOT, small_config

pytestmark = pytest.mark.process

HALF = "run/iteration-000/rft/half"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Two runs, each with a file of 1,500 bytes of an artifact that was never finished, two days old."""
    made = Store(str(tmp_path / "store"))
    for name in ("run", "other"):
        write_run_record(made, small_config(name=name))
        made.write_bytes(f"{name}/iteration-000/rft/half", b"x" * 1500)
        then = time.time() - 48 * 3600
        os.utime(made.local_path(f"{name}/iteration-000/rft/half"), (then, then))
    return made


def gc(store: Store, *arguments: str) -> Result:
    return CliRunner().invoke(group, ["gc", "--store", store.uri, *arguments])


def test_a_dry_run_shows_and_deletes_nothing(store):
    said = gc(store, "--dry-run")
    assert said.exit_code == 0
    assert "would be deleted: 2 items, 3.0 kB" in said.output
    assert "superseded or never finished" in said.output
    assert store.exists(HALF)


def test_yes_deletes_and_a_second_time_there_is_nothing(store):
    assert "deleted: 2 items, 3.0 kB" in gc(store, "--yes").output
    assert not store.exists(HALF)
    assert not store.local_path("run/iteration-000").exists(), "no empty folders stay"
    assert store.exists("run/run.json")
    assert "to delete: 0 items, 0 B" in gc(store, "--yes").output


def test_where_nobody_can_be_asked_it_says_which_flag_is_missing(store):
    for arguments in ((), ("--json",)):
        said = gc(store, *arguments)
        assert said.exit_code == 2
        assert "--yes" in said.output and "--dry-run" in said.output
    assert store.exists(HALF)


def test_json_tells_keys_bytes_and_reasons(store):
    planned = json.loads(gc(store, "run", "--dry-run", "--json").output)
    assert planned["deleted"] is False
    assert planned["bytes"] == 1500
    (run,) = planned["runs"]
    (item,) = run["items"]
    assert (run["run"], item["key"], item["bytes"]) == ("run", HALF, 1500)
    done = json.loads(gc(store, "run", "--yes", "--json").output)
    assert done["deleted"] is True
    assert done["runs"][0]["items"] == [item]
    assert not store.exists(HALF)
    assert store.exists("other/iteration-000/rft/half")


def test_what_is_younger_than_told_stays_and_is_counted(store):
    said = gc(store, "--older-than", "3d", "--yes").output
    assert "0 items, 0 B; 2 more are too young" in said
    assert store.exists(HALF)
    assert gc(store, "--older-than", "soon", "--dry-run").exit_code == 2
    for age, things in (("47h", 2), ("2880.5m", 0), ("100000s", 2)):
        assert json.loads(gc(store, "--older-than", age, "--dry-run", "--json").output)["bytes"] == 1500 * things


def test_an_unknown_run_is_an_error_that_names_the_known(store):
    said = gc(store, "runn", "--yes")
    assert "it holds other, run" in str(said.exception)


@pytest.mark.parametrize(("answer", "kept"), [("n", True), ("", True), ("y", False)])
def test_at_a_terminal_it_asks_and_no_is_the_default(store, answer, kept):
    ours, theirs = os.openpty()
    command = [sys.executable, "-m", "rloop_core", "gc", "run", "--store", store.uri]
    started = subprocess.Popen(command, stdin=theirs, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    os.write(ours, f"{answer}\n".encode())
    said, _ = started.communicate(timeout=60)
    os.close(ours)
    os.close(theirs)
    assert "to delete: 1 items, 1.5 kB" in said
    assert "Delete this? [y/N]" in said
    assert started.returncode == 0
    assert store.exists(HALF) == kept
