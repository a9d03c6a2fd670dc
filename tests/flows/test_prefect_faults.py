"""SIGKILL of every part of Prefect: the run goes on by itself, with the digests of an undisturbed run."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from contextvars import copy_context
from pathlib import Path
from typing import Any

import psutil
import pytest

from rloop_core.errors import Stopped
from tasks import gpu_concurrency
from tasks.gpu_concurrency import concurrency_slot
from tests.conftest import ROOT, manifest_digests
from tests.faults.conftest import wait_until
from tests.flows.disturbed import (
    CPU,
    GPU,
    RUN,
    Disturbed,
    digests_undisturbed,
    exploring,
    flow_process,
)
from tests.processes import still_running

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]
PATIENCE = 400.0
HOLDER = """
import time
from tasks import gpu_concurrency

gpu_concurrency.LEASE_SECONDS = 60.0
with gpu_concurrency.concurrency_slot("left", "killed", print):
    print("holds", flush=True)
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return digests_undisturbed(tmp_path_factory.mktemp("undisturbed"))


@pytest.fixture(scope="module")
def prefect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Disturbed]:
    """A server with everything deployed."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    running = Disturbed(tmp_path_factory.mktemp("prefect"), port)
    try:
        running.start_server()
        running.server.deploy()
        yield running
    finally:
        running.close()


def _stages_done(store: Path) -> set[str]:
    return {path.parent.name for path in (store / RUN).rglob("manifest.json")}


def _below(worker: psutil.Process) -> psutil.Process:
    """Wait until the flow explores, and return its process."""
    found = flow_process(worker)
    assert found is not None
    return found


def _exploring_without_worker(prefect: Disturbed, store: Path) -> tuple[str, psutil.Process]:
    """A run that explores, its process, and no worker any more."""
    worker = prefect.start_worker()
    number = prefect.start(store)
    wait_until(lambda: exploring(store), "exploration", PATIENCE, 0.02)
    flow = _below(worker)
    prefect.kill_worker()
    return number, flow


def test_a_stage_and_then_the_run_itself_killed_go_on_without_anybody(
    prefect: Disturbed, undisturbed: dict[str, str], tmp_path: Path
) -> None:
    prefect.want_sleepers()
    store = tmp_path / "store"
    worker = prefect.start_worker()
    number = prefect.start(store)
    wait_until(lambda: exploring(store), "exploration", PATIENCE, 0.02)
    supervisors = [one for one in psutil.Process(worker.pid).children(recursive=True) if _leads_its_session(one)]
    first = prefect.sleepers()
    assert first, "exploration started a process in a session of its own"
    for process in supervisors:
        if process not in first:
            os.kill(process.pid, signal.SIGKILL)
    wait_until(lambda: len(prefect.sleepers()) and prefect.sleepers() != first, "the next try", PATIENCE, 0.02)
    assert not still_running(first), "its supervisor was killed, and the run ended it"

    os.kill(_below(worker).pid, signal.SIGKILL)
    wait_until(lambda: prefect.server.get(f"/flow_runs/{number}")["run_count"] == 2, "the second start", PATIENCE, 0.5)
    run = prefect.server.wait(number, PATIENCE)
    assert run["state_type"] == "COMPLETED", run["state"]
    assert manifest_digests(store, RUN) == undisturbed
    states = prefect.states(number)
    assert not prefect.unended, "what the killed process left Running was put right"
    assert states["rft-000"] == "Completed"
    prefect.kill_worker()


def test_a_run_outlives_its_worker_and_its_server_and_the_servers_memory(
    prefect: Disturbed, undisturbed: dict[str, str], tmp_path: Path
) -> None:
    store = tmp_path / "store"
    number, flow = _exploring_without_worker(prefect, store)
    prefect.kill_server()
    wait_until(lambda: "explore" in _stages_done(store), "the end of exploration", PATIENCE, 0.02)
    time.sleep(5)  # its report meets nobody
    assert flow.is_running(), "neither ends a run"
    prefect.start_server()
    run = prefect.server.wait(number, PATIENCE)
    while run["state_name"] in ("Crashed", "Resumable"):  # it asked at a moment at which Prefect asks once only
        prefect.start_worker() if not prefect.has_worker() else time.sleep(0.5)
        run = prefect.server.wait(number, PATIENCE)
    assert run["state_type"] == "COMPLETED", run["state"]
    assert manifest_digests(store, RUN) == undisturbed

    prefect.kill_server()
    prefect.lose_database()
    prefect.start_server()
    prefect.server.deploy()
    if not prefect.has_worker():
        prefect.start_worker()
    number = prefect.start(store)
    assert prefect.server.wait(number, PATIENCE)["state_type"] == "COMPLETED"
    states = prefect.states(number)
    assert {state for name, state in states.items() if name.endswith(("-000", "-base"))} <= {"Cached", "Completed"}
    assert states["explore-000"] == states["rft-000"] == states["evaluate-base"] == "Cached"
    assert manifest_digests(store, RUN) == undisturbed
    prefect.kill_worker()


def test_a_cancelled_run_is_gone_whole_and_goes_on_when_it_is_started_again(
    prefect: Disturbed, undisturbed: dict[str, str], tmp_path: Path
) -> None:
    prefect.want_sleepers()
    store = tmp_path / "store"
    workers = prefect.start_worker(GPU), prefect.start_worker(CPU)
    number = prefect.start(store)
    wait_until(lambda: exploring(store), "exploration", PATIENCE, 0.02)
    flow = _below(workers[0])
    stopped = _stages(workers[0])
    for process in stopped:
        process.suspend()  # as one that hangs, so that the rest finds it under way
    assert stopped

    second = prefect.server.wait(prefect.start(store, "rloop/iterate-cpu"), PATIENCE)
    assert second["state_type"] == "FAILED"
    assert f"is being written by process {flow.pid}" in second["state"]["message"]

    tree = [flow, *flow.children(recursive=True), *prefect.sleepers()]
    _cancel(prefect, number)
    assert not still_running(tree)
    assert prefect.server.wait(number, PATIENCE)["state_name"] == "Cancelled"
    number = prefect.start(store)
    wait_until(lambda: flow_process(workers[0]) is not None, "the next start", PATIENCE, 0.1)
    assert prefect.server.wait(number, PATIENCE)["state_type"] == "COMPLETED"
    assert manifest_digests(store, RUN) == undisturbed
    assert not prefect.sleepers()

    number = prefect.start(tmp_path / "other")
    preflight = {"flow_runs": {"id": {"any_": [number]}}, "task_runs": {"name": {"any_": ["preflight"]}}}
    wait_until(lambda: prefect.server.post("/task_runs/filter", preflight).json(), "preflight", PATIENCE, 0.2)
    flow = _below(workers[0])
    tree = [flow, *flow.children(recursive=True)]
    prefect.kill_worker()
    _cancel(prefect, number)
    assert not still_running(tree), "without a worker, the run notices by itself"
    assert prefect.server.wait(number, PATIENCE)["state_name"] == "Cancelled"


def test_a_machine_that_dies_is_noticed_by_its_silence(
    prefect: Disturbed, undisturbed: dict[str, str], tmp_path: Path
) -> None:
    prefect.shorten_silence(35)
    store = tmp_path / "store"
    number, flow = _exploring_without_worker(prefect, store)
    flow.kill()
    prefect.start_worker()
    run = prefect.server.wait(number, PATIENCE)
    while run["state_name"] in ("Crashed", "Resumable"):
        time.sleep(0.5)
        run = prefect.server.wait(number, PATIENCE)
    assert (run["state_type"], run["run_count"]) == ("COMPLETED", 2), run["state"]
    states = prefect.server.get(f"/flow_run_states/?flow_run_id={number}")
    assert any("Its heartbeat stopped" in (state["message"] or "") for state in states)
    assert manifest_digests(store, RUN) == undisturbed
    prefect.kill_worker()


def test_a_slot_is_one_stages_at_a_time_though_the_server_restarts(
    prefect: Disturbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed holder's slot is free after its lease; a living holder keeps its slot, however often it is renewed."""
    monkeypatch.setattr(gpu_concurrency, "LEASE_SECONDS", 60.0)  # a server grants none that is shorter
    for name in ("kept", "left"):
        prefect.server.post("/v2/concurrency_limits/", {"name": name, "limit": 1}).raise_for_status()
    got: dict[str, float] = {}
    ended = threading.Event()

    def wait_for(name: str, waiter: str, should_stop: Callable[[], bool] = lambda: False) -> None:
        with suppress(Stopped), concurrency_slot(name, waiter, print, should_stop):
            got[waiter] = time.monotonic()
        if waiter not in got:
            ended.set()

    def start(*given: Any) -> threading.Thread:
        thread = threading.Thread(target=copy_context().run, args=(wait_for, *given), daemon=True)
        thread.start()
        return thread

    with prefect.server.client():
        with concurrency_slot("kept", "holder", print):
            began = time.monotonic()
            holder = subprocess.Popen(
                [sys.executable, "-c", HOLDER], cwd=ROOT, env=prefect.server.environment(), stdout=subprocess.PIPE
            )
            assert holder.stdout and holder.stdout.readline() == b"holds\n"
            holder.kill()
            holder.wait()
            cancelled = threading.Event()
            start("kept", "cancelled", cancelled.is_set)
            waiting = [start("kept", "next"), start("left", "heir")]
            prefect.kill_server()
            prefect.start_server()
            wait_until(lambda: "heir" in got, "the killed holder's slot", PATIENCE, 0.5)
            assert got["heir"] - began > 50, "it was leased for a minute"
            cancelled.set()
            wait_until(ended.is_set, "the end of the one that is told to stop", 60, 0.1)
            time.sleep(max(0.0, began + 150 - time.monotonic()))  # two leases, and some
            assert set(got) == {"heir"}
        for thread in waiting:
            thread.join(PATIENCE)
    assert set(got) == {"heir", "next"}


def _cancel(prefect: Disturbed, number: str) -> None:
    """Cancel a run, as the UI does."""
    answer = prefect.server.post(f"/flow_runs/{number}/set_state", {"state": {"type": "CANCELLING"}})
    assert answer.json()["status"] == "ACCEPT", answer.text


def _stages(worker: psutil.Process) -> list[psutil.Process]:
    """The processes in which stages compute: right below the supervisors, which lead sessions of their own."""
    leaders = [one for one in worker.children(recursive=True) if _leads_its_session(one)]
    return [stage for leader in leaders for stage in leader.children() if not _leads_its_session(stage)]


def _leads_its_session(process: psutil.Process) -> bool:
    try:
        return os.getsid(process.pid) == process.pid
    except ProcessLookupError:
        return False
