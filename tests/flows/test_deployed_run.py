"""From `rloop deploy` to a finished run: a real server, a real process worker, Prefect's own command to start it."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.flows.server import Server, prefect_server

PATIENCE = 240
SMALL = ["explore.steps=2", "evaluate.samples=2", "evaluate.k=[1, 2]"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """With everything deployed, its store in a folder of its own, and a worker of the GPU pool."""
    folder = tmp_path_factory.mktemp("prefect")
    with prefect_server(folder) as running:
        running.call("rloop_core", "deploy", "--store", str(folder / "store"))
        with running.worker("rloop-gpu"):
            yield running


def _run(server: Server, deployment: str, **parameters: Any) -> dict[str, Any]:
    """Start a run as a user would, and wait for its end."""
    given = [part for name, value in parameters.items() for part in ("-p", f"{name}={json.dumps(value)}")]
    done = server.call("prefect", "deployment", "run", deployment, *given, COLUMNS="300")
    found = re.search(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", done.stdout)
    assert found, done.stdout
    number = found[0]
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        run: dict[str, Any] = server.get(f"/flow_runs/{number}")
        if run["state_type"] in ("COMPLETED", "FAILED", "CRASHED", "CANCELLED"):
            return run
        time.sleep(0.5)
    log = (server.folder / "rloop-gpu.log").read_text()
    raise AssertionError(f"{run['name']} is {run['state_name']} after {PATIENCE} s:\n{log[-4000:]}")


def _states(server: Server, run: dict[str, Any]) -> dict[str, str]:
    """Names of the states of a run's tasks and of its iterations' tasks, by task run."""
    for _ in range(100):  # task runs reach the database as events, a little after they end
        inner = server.post("/flow_runs/filter", {"flow_runs": {"parent_flow_run_id": {"any_": [run["id"]]}}}).json()
        flows = [run["id"], *(one["id"] for one in inner)]
        tasks = server.post("/task_runs/filter", {"flow_runs": {"id": {"any_": flows}}}).json()
        if all(task["state_type"] in ("COMPLETED", "FAILED") for task in tasks):
            break
        time.sleep(0.2)
    return {task["name"]: task["state_name"] for task in tasks}


def test_a_deployed_run_completes_through_the_worker_and_the_next_shows_cached(server: Server) -> None:
    asked = {"config_file": "smoke", "name": "first", "iterations": 1, "overrides": SMALL}
    first = _run(server, "rloop/iterate", **asked)
    assert (first["state_name"], first["name"]) == ("Completed", "first"), first["state"]["message"]
    states = _states(server, first)
    stages = {"explore-000", "harvest-000", "filter-000", "rft-000", "evaluate-base", "evaluate-000"}
    assert stages <= set(states) and {states[stage] for stage in stages} == {"Completed"}
    run: Path = server.folder / "store/first"
    assert json.loads((run / "run.json").read_text())["config"]["explore"]["steps"] == 2
    assert len(list(run.rglob("manifest.json"))) == len(stages)

    again = _states(server, _run(server, "rloop/iterate", **asked))
    assert {again[stage] for stage in stages} == {"Cached"}


def test_what_no_schema_can_tell_fails_the_run_with_the_field_and_the_fix(server: Server) -> None:
    failed = _run(server, "rloop/iterate", config_file="smoke", overrides=["explore.group_size=7"])
    message = failed["state"]["message"]
    assert failed["state_name"] == "Failed"
    assert "explore.group_size" in message and "fix:" in message


def test_a_deployed_evaluation_says_where_its_samples_are(server: Server) -> None:
    out = server.folder / "evaluation"
    asked = {"problems": "reasoning_gym:chain_sum", "limit": 3, "samples": 2, "template": "plain", "max_tokens": 24}
    run = _run(server, "evaluate/model", **asked, out=str(out))
    assert (run["state_name"], run["name"]) == ("Completed", "bundled-on-reasoning_gym:chain_sum"), run["state"]
    assert json.loads((out / "metrics.json").read_text())["samples"] == 6
    (table,) = server.post("/artifacts/filter", {"artifacts": {"flow_run_id": {"any_": [run["id"]]}}}).json()
    assert {"avg@2", "pass@1", "majority@2"} == {row["metric"] for row in json.loads(table["data"])}
