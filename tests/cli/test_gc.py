"""`rloop gc` lists the garbage, and with --yes deletes it and reports what it deleted."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rloop_core.cli.entry import group
from rloop_core.stages.run_record import write_run_record
from rloop_core.store import Store
from tests.conftest import small_config

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


def test_it_lists_and_deletes_only_with_yes(store):
    listed = gc(store)
    assert listed.exit_code == 0
    assert "garbage, which --yes deletes: 2 items, 3.0 kB" in listed.output
    assert "superseded or never finished" in listed.output
    assert store.exists(HALF)
    assert "deleted: 2 items, 3.0 kB" in gc(store, "--yes").output
    assert not store.exists(HALF)
    assert not store.local_path("run/iteration-000").exists(), "no empty folders stay"
    assert store.exists("run/run.json")
    assert "deleted: 0 items, 0 B" in gc(store, "--yes").output


def test_json_tells_keys_bytes_and_reasons(store):
    planned = json.loads(gc(store, "run", "--json").output)
    assert (planned["deleted"], planned["bytes"]) == (False, 1500)
    (run,) = planned["runs"]
    (item,) = run["items"]
    assert (run["run"], item["entry"]["key"], item["entry"]["bytes"]) == ("run", HALF, 1500)
    done = json.loads(gc(store, "run", "--yes", "--json").output)
    assert done["deleted"] and done["runs"][0]["items"] == [item]
    assert not store.exists(HALF)
    assert store.exists("other/iteration-000/rft/half")


def test_what_is_younger_than_told_stays_and_is_counted(store):
    said = gc(store, "--older-than", "72", "--yes").output
    assert "0 items, 0 B; 2 more are too young" in said
    assert store.exists(HALF)
    assert gc(store, "--older-than", "7d").exit_code == 2
    for hours, things in (("47", 2), ("48.5", 0)):
        assert json.loads(gc(store, "--older-than", hours, "--json").output)["bytes"] == 1500 * things


def test_an_unknown_run_is_an_error_that_names_the_known(store):
    said = gc(store, "runn", "--yes")
    assert "it holds other, run" in str(said.exception)
