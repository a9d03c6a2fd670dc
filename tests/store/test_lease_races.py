"""A dead holder's lease goes to exactly one of those who want it."""

from __future__ import annotations

import json
import signal

import pytest

from rloop_core.store import Lease

KEY = "run/lease.json"


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
def test_of_six_processes_racing_for_a_dead_lease_exactly_one_wins(local, start_holder, start_program, claimed):
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


def test_a_dead_taker_elsewhere_does_not_block_for_ever(local):
    silent = {"token": "elsewhere", "host": "node7", "machine": "node7/x", "pid": 1, "started": 1.0, "beats": 0}
    local.write_bytes(KEY, json.dumps(silent).encode())
    local.write_bytes(
        "run/lease-takeover-elsewhere-0", json.dumps({"token": "t", "host": "node8", "machine": "node8/x"}).encode()
    )
    with Lease(local, "run", heartbeat=0.05, patience=0.3) as lease:
        lease.ensure_held()
    assert local.list("") == []
