"""Stages on another work pool, with a real server and a worker of each pool: the same digests, nothing left behind."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from rloop_core.config import make_config
from rloop_core.stages.runner import StageRunner
from rloop_core.store import Lease, Store
from tests.conftest import manifest_digests, small_config
from tests.flows.server import Server, prefect_server
from tests.processes import still_running

PATIENCE = 500
STAGES = ("explore", "harvest", "filter", "rft")
pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with everything deployed and a worker of each pool."""
    with prefect_server(tmp_path_factory.mktemp("prefect")) as running:
        running.deploy()
        with running.worker("rloop-gpu"), running.worker("rloop-cpu"):
            yield running


def _config(server: Server, name: str, pools: dict[str, str], steps: int) -> dict[str, Any]:
    placement = {"store": str(server.folder / "store"), "pools": pools}
    config = small_config(name=name, explore={"steps": steps}, filter={"threshold": 0.9}, placement=placement)
    return config.model_dump(mode="json")


def _start(server: Server, config: dict[str, Any]) -> str:
    """Start a run in pool rloop-gpu."""
    number = server.get("/deployments/name/rloop/iterate")["id"]
    answer = server.post(f"/deployments/{number}/create_flow_run", {"parameters": {"config": config}})
    return str(answer.raise_for_status().json()["id"])


def _sent(server: Server, name: str, state: str = "") -> list[dict[str, Any]]:
    """Return the flow runs of a run's stages in a state, oldest first."""
    asked = {"flows": {"name": {"any_": ["rloop-stage"]}}, "sort": "EXPECTED_START_TIME_ASC"}
    runs = server.post("/flow_runs/filter", asked).json()
    return [run for run in runs if run["parameters"]["run"] == name and state in ("", run["state_name"])]


def _until(condition: Callable[[], Any], what: str, server: Server) -> Any:
    deadline = time.monotonic() + PATIENCE
    while not (found := condition()):
        if time.monotonic() > deadline:
            logs = "".join(f"{log.name}:\n{log.read_text()[-3000:]}" for log in server.folder.glob("rloop-*.log"))
            raise AssertionError(f"waited {PATIENCE} s for {what}\n{logs}")
        time.sleep(0.2)
    return found


def _processes(number: str) -> list[psutil.Process]:
    """Return all processes of a flow run, which their environment names."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("PREFECT__FLOW_RUN_ID") == number:
                found.append(process)
    return found


def _digests_inline(config: dict[str, Any], folder: Path) -> dict[str, str]:
    """Return the digests of the same run on one machine."""
    placement = {**config["placement"], "store": str(folder), "pools": {}}
    inline = make_config({**config, "placement": placement})
    with Lease(Store(str(folder)), inline.name) as lease:
        runner = StageRunner(inline, Store(str(folder)), lease)
        for stage in STAGES:
            runner.ensure(stage, 0)
    return manifest_digests(folder, inline.name)


def test_stages_of_another_pool_give_the_same_digests_and_are_started_again_when_they_die(
    server: Server, tmp_path: Path
) -> None:
    config = _config(server, "apart", {"harvest": "rloop-cpu", "filter": "rloop-cpu", "rft": "rloop-gpu"}, steps=2)
    number = _start(server, config)
    victim = _until(lambda: _sent(server, "apart", "Running"), "a stage elsewhere", server)[0]
    for process in _processes(victim["id"]):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    run = server.wait(number, PATIENCE)
    assert run["state_name"] == "Completed", run["state"]
    sent = _sent(server, "apart")
    assert [(one["name"], one["state_name"], one["work_pool_name"]) for one in sent] == [
        ("harvest-000", "Crashed", "rloop-cpu"),
        ("harvest-000", "Completed", "rloop-cpu"),
        ("filter-000", "Completed", "rloop-cpu"),
    ], "rft stays with the run, which is in rloop-gpu already"
    assert all(one["parent_task_run_id"] and "rloop" not in one["tags"] for one in sent)
    assert not list((server.folder / "store/apart").glob("requests/*/*"))
    assert manifest_digests(server.folder / "store", "apart") == _digests_inline(config, tmp_path)


def test_cancelling_the_run_ends_its_stage_elsewhere(server: Server) -> None:
    number = _start(server, _config(server, "cancelled", {"explore": "rloop-cpu"}, steps=500))
    stage = _until(lambda: _sent(server, "cancelled", "Running"), "the stage elsewhere", server)[0]
    logs = {"logs": {"flow_run_id": {"any_": [stage["id"]]}}}
    _until(lambda: "RL step 1/500" in str(server.post("/logs/filter", logs).json()), "an RL step", server)
    below = _processes(stage["id"])
    server.post(f"/flow_runs/{number}/set_state", {"state": {"type": "CANCELLING", "name": "Cancelling"}})
    assert server.wait(number, PATIENCE)["state_name"] == "Cancelled"
    assert server.wait(stage["id"], PATIENCE)["state_name"] == "Cancelled"
    assert below and not still_running(below)
    assert not list((server.folder / "store/cancelled").rglob("manifest.json"))


def test_a_pool_that_the_server_does_not_know_is_refused_before_anything_is_computed(server: Server) -> None:
    run = server.wait(_start(server, _config(server, "nowhere", {"filter": "no-such-pool"}, steps=2)), PATIENCE)
    assert run["state_name"] == "Failed"
    assert "placement.pools.filter" in run["state"]["message"] and "fix:" in run["state"]["message"]


def test_a_stage_elsewhere_outlives_its_worker_and_a_server_that_is_away_for_a_minute(
    server: Server, tmp_path: Path
) -> None:
    config = _config(server, "alone", {"explore": "rloop-cpu"}, steps=40)
    number = _start(server, config)
    stage = _until(lambda: _sent(server, "alone", "Running"), "the stage elsewhere", server)[0]
    _until(lambda: list((server.folder / "store").rglob("alone/**/metrics.jsonl")), "an RL step", server)
    (worker,) = [one for one in psutil.process_iter() if _is_worker(one, "rloop-cpu", server)]
    worker.kill()
    away = _listener(server)
    away.suspend()
    time.sleep(60)
    away.resume()
    run = server.wait(number, PATIENCE)
    assert run["state_name"] == "Completed", run["state"]
    assert [(one["id"], one["state_name"]) for one in _sent(server, "alone")] == [(stage["id"], "Completed")]
    assert manifest_digests(server.folder / "store", "alone") == _digests_inline(config, tmp_path)


def _is_worker(process: psutil.Process, pool: str, server: Server) -> bool:
    with contextlib.suppress(psutil.Error):
        return process.cmdline()[-4:-2] == ["--pool", pool] and process.environ().get("PREFECT_API_URL") == server.api
    return False


def _listener(server: Server) -> psutil.Process:
    """Return the server's process."""
    port = int(server.api.removesuffix("/api").rpartition(":")[2])
    found = [one for one in psutil.net_connections("tcp") if one.laddr.port == port and one.status == "LISTEN"]
    return psutil.Process(found[0].pid)
