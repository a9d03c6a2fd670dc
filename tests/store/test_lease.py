"""One writer per run: refused while the holder lives, taken over by exactly one when it is dead, on any clock."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import threading
import time
import uuid

import pytest

from rloop_core.errors import LeaseError
from rloop_core.store import Lease, Store
from tests.faults.conftest import wait_until

KEY = "run/lease.json"


def foreign(store: Store, beats: int = 0, token: str = "elsewhere") -> None:
    content = {"token": token, "host": "node7", "machine": "node7/x", "pid": 1, "started": 1.0, "heartbeats": beats}
    store.write_bytes(KEY, json.dumps(content).encode())


def test_a_second_process_is_refused_by_name_until_the_first_is_done(local, start_holder):
    first = start_holder(local)
    assert first.stdout and first.stdout.readline() == "held\n"
    with pytest.raises(LeaseError, match=f"being written by process {first.pid} on ") as caught, Lease(local, "run"):
        pass
    assert caught.value.exit_code == 5
    assert "--name" in str(caught.value.fix)
    with Lease(local, "other-run"):
        pass
    first.communicate("\n")
    assert first.returncode == 0
    with Lease(local, "run"):
        assert local.exists(KEY)


def test_a_second_holder_in_the_same_process_is_refused(store):
    with Lease(store, "run"):
        with pytest.raises(LeaseError), Lease(store, "run"):
            pass
        assert store.exists(KEY)


@pytest.fixture(params=["moto", pytest.param("swift", marks=pytest.mark.long)])
def lenient(request: pytest.FixtureRequest) -> Store:
    """A store on a server that lets several create the same object at once."""
    if request.param == "swift":
        return Store(f"{request.getfixturevalue('swift_here').uri}/{uuid.uuid4().hex}")
    request.getfixturevalue("faulty").lenient = True
    return Store(f"{request.getfixturevalue('s3_server')}/{uuid.uuid4().hex}")


@pytest.mark.process
def test_one_of_several_simultaneous_holders_may_publish(lenient):
    store = lenient
    began, entered, left = threading.Barrier(5), threading.Barrier(5), []

    def take(number: int) -> None:
        began.wait()
        with contextlib.ExitStack() as held:
            lease = Lease(store, "run", heartbeat=60.0, patience=0.5)
            with contextlib.suppress(LeaseError):
                held.enter_context(lease)
            entered.wait()
            with contextlib.suppress(LeaseError):
                lease.ensure_held()
                left.append(number)
            entered.wait()

    threads = [threading.Thread(target=take, args=(number,)) for number in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(left) == 1


def test_a_lease_is_released_at_the_end_and_on_errors(store):
    with Lease(store, "run") as lease:
        lease.ensure_held()
    assert store.list("") == []
    with pytest.raises(ZeroDivisionError), Lease(store, "run"):
        1 / 0  # noqa: B018
    assert store.list("") == []


def test_a_killed_holders_lease_is_taken_over_at_once(local, start_holder):
    first = start_holder(local)
    assert first.stdout and first.stdout.readline() == "held\n"
    first.send_signal(signal.SIGKILL)
    first.wait()
    with Lease(local, "run", patience=3600.0) as lease:  # which it does not wait out
        lease.ensure_held()
        assert local.list("") == [KEY]


def test_a_process_id_in_use_again_is_another_process(local):
    with Lease(local, "run"):
        content = json.loads(local.read_bytes(KEY))
    local.write_bytes(KEY, json.dumps({**content, "token": "before", "started": content["started"] - 100}).encode())
    with Lease(local, "run") as lease:
        lease.ensure_held()


def test_a_silent_holder_elsewhere_is_taken_over_after_the_patience(store):
    foreign(store)
    told: list[str] = []
    began = time.monotonic()
    with Lease(store, "run", heartbeat=0.1, patience=0.4, note=told.append) as lease:
        assert time.monotonic() - began >= 0.4
        lease.ensure_held()
    assert "node7" in told[0]


def test_a_holder_elsewhere_with_a_heartbeat_keeps_its_lease(local):
    foreign(local)
    stop = threading.Event()

    def beat() -> None:
        beats = 0
        while not stop.wait(0.1):
            beats += 1
            foreign(local, beats)

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        with pytest.raises(LeaseError, match="on node7"), Lease(local, "run", heartbeat=0.1, patience=60.0):
            pass
    finally:
        stop.set()
        thread.join()


def test_an_unreadable_lease_is_a_silent_one(local):
    for garbage in (b"", b"{", b"[]", b'{"machine": 3, "pid": "x"}'):
        local.write_bytes(KEY, garbage)
        with Lease(local, "run", heartbeat=0.05, patience=0.2) as lease:
            lease.ensure_held()


def test_a_holder_that_was_overtaken_stops_before_it_publishes(store):
    with Lease(store, "run", heartbeat=60.0) as lease:
        lease.ensure_held()
        foreign(store)
        with pytest.raises(LeaseError, match="taken over"):
            lease.ensure_held()
    assert json.loads(store.read_bytes(KEY))["token"] == "elsewhere", "another's lease must not be released"


def test_the_heartbeat_thread_stops_after_a_takeover(local):
    with Lease(local, "run", heartbeat=0.05) as lease:
        foreign(local)
        wait_until(
            lambda: "lease-run" not in {thread.name for thread in threading.enumerate()}, "the heartbeat to stop"
        )
        assert json.loads(local.read_bytes(KEY))["token"] == "elsewhere"
        local.delete(KEY)
        with pytest.raises(LeaseError):
            lease.ensure_held()


def test_the_heartbeat_restores_a_deleted_lease(store):
    with Lease(store, "run", heartbeat=0.05) as lease:
        first = json.loads(store.read_bytes(KEY))["heartbeats"]
        wait_until(lambda: json.loads(store.read_bytes(KEY))["heartbeats"] > first, "a heartbeat")
        store.delete(KEY)
        wait_until(lambda: store.exists(KEY), "the lease to be there again")
        lease.ensure_held()


_RACE = """
import os, sys, time
from rloop_core.errors import LeaseError
from rloop_core.store import Lease, Store
store, (start, go), (wait, done) = Store(sys.argv[1]), os.pipe(), os.pipe()
for number in range(6):
    if os.fork() == 0:
        os.close(go), os.close(done)
        os.read(start, 1)
        try:
            with Lease(store, "run", heartbeat=0.1, patience=0.5) as lease:
                os.write(1, b"held\\n")
                os.read(wait, 1)
                lease.ensure_held()
                os.write(1, b"still held\\n")
        except LeaseError as error:
            os.write(1, f"refused {error}\\n".encode())
        os._exit(0)
os.close(go)
for left in range(5):
    os.wait()
os.close(done)
os.wait()
"""


@pytest.mark.process
@pytest.mark.parametrize("claimed", [False, True], ids=["dead-holder", "dead-holder-and-dead-taker"])
def test_one_of_six_processes_gets_a_dead_lease(local, start_holder, start_program, claimed):
    dead = start_holder(local)
    assert dead.stdout and dead.stdout.readline() == "held\n"
    dead.send_signal(signal.SIGKILL)
    dead.wait()
    content = json.loads(local.read_bytes(KEY))
    if claimed:
        local.write_bytes(f"run/lease-takeover-{content['token']}-0", json.dumps(content).encode())
    said = start_program(_RACE, local.uri).communicate(timeout=300)[0].splitlines()
    assert said.count("held") == said.count("still held") == 1, said
    assert sum("being written by" in line for line in said) == 5, said
    assert local.list("") == []


def test_a_dead_claimant_elsewhere_does_not_block(local):
    foreign(local)
    local.write_bytes(
        "run/lease-takeover-elsewhere-0", json.dumps({"token": "t", "host": "node8", "machine": "node8/x"}).encode()
    )
    with Lease(local, "run", heartbeat=0.05, patience=0.3) as lease:
        lease.ensure_held()
    assert local.list("") == []


@pytest.fixture
def shared(request: pytest.FixtureRequest, local: Store) -> Store:
    """A store that several machines share: a disk, or a real S3 server."""
    if request.param == "disk":
        return local
    return Store(f"{request.getfixturevalue('swift_here').uri}/{uuid.uuid4().hex}")


def line_of(worker: subprocess.Popen[str]) -> str:
    assert worker.stdout
    return worker.stdout.readline()


@pytest.mark.parametrize(
    ("shared", "skew"), [("disk", 3600.0), pytest.param("swift", -3600.0, marks=pytest.mark.long)], indirect=["shared"]
)
def test_a_living_holder_keeps_its_lease_on_any_clock(shared, start_holder, skew):
    holder = start_holder(shared, skew, "node7")
    assert line_of(holder) == "held\n"
    late = start_holder(shared, -skew, "node8")
    assert "being written by" in line_of(late), "the other clock is two hours away"
    with pytest.raises(LeaseError), Lease(shared, "run", heartbeat=0.1, patience=30.0):
        pass
    assert holder.communicate("\n")[0] == "still held\n"
    assert not shared.exists(KEY)


@pytest.mark.parametrize("skew", [3600.0, -3600.0], ids=["fast", "slow"])
def test_a_dead_holder_with_a_wrong_clock_is_replaced_after_the_patience(local, start_holder, skew):
    holder = start_holder(local, skew, "node7")
    assert line_of(holder) == "held\n"
    holder.kill()
    holder.wait()
    began = time.monotonic()
    with Lease(local, "run", heartbeat=0.1, patience=1.0) as lease:
        assert time.monotonic() - began >= 1.0
        lease.ensure_held()


def test_a_lease_holds_no_time(local):
    with Lease(local, "run"):
        assert set(json.loads(local.read_bytes(KEY))) == {"token", "host", "machine", "pid", "started", "heartbeats"}
