"""A dead holder's lease goes to exactly one of those who want it."""

from __future__ import annotations

import json
import signal

import pytest

from rloop_core.store import Lease

KEY = "run/lease.json"


@pytest.mark.parametrize("claimed", [False, True], ids=["dead-holder", "dead-holder-and-dead-taker"])
def test_of_six_processes_racing_for_a_dead_lease_exactly_one_wins(local, start_holder, claimed):
    dead = start_holder(local)
    assert dead.stdout and dead.stdout.readline() == "held\n"
    dead.send_signal(signal.SIGKILL)
    dead.wait()
    content = json.loads(local.read_bytes(KEY))
    if claimed:
        local.write_bytes(f"run/lease-takeover-{content['token']}-0", json.dumps(content).encode())
    racers = [start_holder(local) for _ in range(6)]
    said = [racer.stdout.readline() for racer in racers if racer.stdout]
    assert said.count("held\n") == 1, said
    assert sum("being written by" in line for line in said) == 5, said
    winner = racers[said.index("held\n")]
    output = winner.communicate("\n")[0]
    assert output == "", "the winner was overtaken"
    for racer in racers:
        if racer is not winner:
            racer.communicate("\n")
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
