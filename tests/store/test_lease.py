"""One writer a run: refused while its holder lives, taken over when it is dead, by exactly one."""

from __future__ import annotations

import contextlib
import json
import signal
import threading
import time
import uuid

import pytest

from rloop_core.errors import LeaseError
from rloop_core.store import Lease, Store
from tests.faults.conftest import wait_until

KEY = "run/lease.json"


def foreign(store: Store, beats: int = 0, token: str = "elsewhere") -> None:
    content = {"token": token, "host": "node7", "machine": "node7/x", "pid": 1, "started": 1.0, "beats": beats}
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
def test_of_those_who_take_it_together_one_is_left_to_publish(lenient):
    """Who was overwritten learns it before it publishes."""
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


def test_it_is_released_at_the_end_and_on_errors(store):
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
    with Lease(store, "run", heartbeat=0.1, patience=0.4, tell=told.append) as lease:
        assert time.monotonic() - began >= 0.4
        lease.ensure_held()
    assert "node7" in told[0]


def test_a_beating_holder_elsewhere_is_refused(local):
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


def test_the_heartbeat_notices_too_and_stops_beating(local):
    with Lease(local, "run", heartbeat=0.05) as lease:
        foreign(local)
        wait_until(lambda: "lease-run" not in {one.name for one in threading.enumerate()}, "the heart to stop")
        assert json.loads(local.read_bytes(KEY))["token"] == "elsewhere"
        local.delete(KEY)
        with pytest.raises(LeaseError):
            lease.ensure_held()


def test_the_heart_beats_and_survives_a_removed_lease(store):
    with Lease(store, "run", heartbeat=0.05) as lease:
        first = json.loads(store.read_bytes(KEY))["beats"]
        wait_until(lambda: json.loads(store.read_bytes(KEY))["beats"] > first, "a beat")
        store.delete(KEY)
        wait_until(lambda: store.exists(KEY), "the lease to be there again")
        lease.ensure_held()
