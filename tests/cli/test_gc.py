"""`rloop gc` lists the garbage, asks, deletes it, and reports what it deleted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
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
    """Two runs, each with a file of 1,500 bytes of an artifact that was never finished."""
    made = Store(str(tmp_path / "store"))
    for name in ("run", "other"):
        write_run_record(made, small_config(name=name))
        made.write_bytes(f"{name}/iteration-000/rft/half", b"x" * 1500)
    return made


def gc(store: Store, *arguments: str) -> Result:
    return CliRunner().invoke(group, ["gc", "--store", store.uri, *arguments])


def test_a_dry_run_shows_and_deletes_nothing_and_yes_deletes(store):
    said = gc(store, "--dry-run")
    assert said.exit_code == 0
    assert "would be deleted: 2 files, 3.0 kB" in said.output
    assert store.exists(HALF)
    assert "\ndeleted: 2 files, 3.0 kB" in gc(store, "--yes").output
    assert not store.exists(HALF)
    assert store.exists("run/run.json")
    assert "to delete: 0 files, 0 B" in gc(store, "--yes").output


def test_where_nobody_can_be_asked_it_says_which_flag_is_missing(store):
    for arguments in ((), ("--json",)):
        said = gc(store, *arguments)
        assert said.exit_code == 2
        assert "--yes" in said.output and "--dry-run" in said.output
    assert store.exists(HALF)


def test_json_tells_keys_and_bytes(store):
    planned = json.loads(gc(store, "run", "--dry-run", "--json").output)
    run = {"run": "run", "bytes": 1500, "keys": [HALF], "skipped": None, "notes": []}
    assert planned == {"store": store.uri, "deleted": False, "runs": [run]}
    assert json.loads(gc(store, "run", "--yes", "--json").output) == planned | {"deleted": True}
    assert not store.exists(HALF)
    assert store.exists("other/iteration-000/rft/half")


def test_an_unknown_run_is_an_error_that_names_the_known(store):
    assert "it holds other, run" in str(gc(store, "runn", "--yes").exception)


@pytest.mark.parametrize(("answer", "kept"), [("n", True), ("", True), ("y", False)])
def test_at_a_terminal_it_asks_and_no_is_the_default(store, answer, kept):
    ours, theirs = os.openpty()
    command = [sys.executable, "-m", "rloop_core", "gc", "run", "--store", store.uri]
    started = subprocess.Popen(command, stdin=theirs, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    os.write(ours, f"{answer}\n".encode())
    said, _ = started.communicate(timeout=60)
    os.close(ours)
    os.close(theirs)
    assert "to delete: 1 files, 1.5 kB" in said
    assert "Delete this? [y/N]" in said
    assert started.returncode == 0
    assert store.exists(HALF) == kept
