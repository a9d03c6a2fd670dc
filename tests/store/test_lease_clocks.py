"""A machine whose clock is an hour wrong neither loses its lease by that, nor takes another's."""

from __future__ import annotations

import json
import subprocess
import time
import uuid
from collections.abc import Callable

import pytest

from rloop_core.errors import LeaseError
from rloop_core.store import Lease, Store

KEY = "run/lease.json"

_WORKER = """
import datetime, sys, time
skew, machine, uri = float(sys.argv[1]), sys.argv[2], sys.argv[3]
true_time, true_ns = time.time, time.time_ns
time.time, time.time_ns = lambda: true_time() + skew, lambda: true_ns() + int(skew * 1e9)
class Skewed(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return super().now(tz) + datetime.timedelta(seconds=skew)
datetime.datetime = Skewed
from rloop_core.errors import LeaseError
from rloop_core.store import Lease, Store, lease
lease._machine = lambda: machine  # process ids of another machine mean nothing here
try:
    with Lease(Store(uri), "run", heartbeat=0.1, patience=30.0) as held:
        print("held", flush=True)
        sys.stdin.readline()
        held.ensure_held()
        print("still held", flush=True)
except LeaseError as error:
    print(f"refused {error}", flush=True)
"""


@pytest.fixture
def start(start_program: Callable[..., subprocess.Popen[str]]) -> Callable[[Store, float, str], subprocess.Popen[str]]:
    """Start a worker on another machine, whose clock is so many seconds off; it says what became of it."""
    return lambda store, skew, machine: start_program(_WORKER, str(skew), machine, store.uri)


@pytest.fixture
def shared(request: pytest.FixtureRequest, local: Store) -> Store:
    """A store that several machines share: a disk, or a real S3 server."""
    if request.param == "disk":
        return local
    return Store(f"{request.getfixturevalue('swift_here').uri}/{uuid.uuid4().hex}")


def said(worker: subprocess.Popen[str]) -> str:
    assert worker.stdout
    return worker.stdout.readline()


@pytest.mark.parametrize(
    ("shared", "skew"), [("disk", 3600.0), pytest.param("swift", -3600.0, marks=pytest.mark.long)], indirect=["shared"]
)
def test_a_living_holder_keeps_its_lease_whatever_its_clock_says(shared, start, skew):
    holder = start(shared, skew, "node7")
    assert said(holder) == "held\n"
    late = start(shared, -skew, "node8")
    assert "being written by" in said(late), "the other clock is two hours away"
    with pytest.raises(LeaseError), Lease(shared, "run", heartbeat=0.1, patience=30.0):
        pass
    assert holder.communicate("\n")[0] == "still held\n"
    assert not shared.exists(KEY)


@pytest.mark.parametrize("skew", [3600.0, -3600.0], ids=["fast", "slow"])
def test_a_dead_holder_is_outwaited_for_the_patience_and_no_hour(local, start, skew):
    holder = start(local, skew, "node7")
    assert said(holder) == "held\n"
    holder.kill()
    holder.wait()
    began = time.monotonic()
    with Lease(local, "run", heartbeat=0.1, patience=1.0) as lease:
        assert time.monotonic() - began >= 1.0
        lease.ensure_held()


def test_two_machines_that_start_the_same_run_together_are_one_winner(local, start):
    workers = [start(local, skew, machine) for skew, machine in ((3600.0, "node7"), (-3600.0, "node8"))]
    lines = [said(worker) for worker in workers]
    assert lines.count("held\n") == 1, lines
    assert sum("being written by" in line for line in lines) == 1, lines
    winner = workers[lines.index("held\n")]
    assert winner.communicate("\n")[0] == "still held\n"


def test_a_lease_says_nothing_of_the_time(local):
    with Lease(local, "run"):
        assert set(json.loads(local.read_bytes(KEY))) == {"token", "host", "machine", "pid", "started", "beats"}
