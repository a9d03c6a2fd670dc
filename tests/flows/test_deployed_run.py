"""From `rloop deploy` to a finished run: a real server, a real process worker, Prefect's own command to start it."""

from __future__ import annotations

import itertools
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.flows.server import Server, prefect_server
from tests.flows.turns import all_slots_taken, spans_held

pytestmark = pytest.mark.process

SMALL = ["explore.steps=2", "evaluate.samples=2", "evaluate.k=[1, 2]"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """With everything deployed, its store in a folder of its own, and a worker of the GPU pool."""
    folder = tmp_path_factory.mktemp("prefect")
    with prefect_server(folder) as running:
        running.deploy("--store", str(folder / "store"))
        with running.worker("rloop-gpu"):
            yield running


def _run(server: Server, deployment: str, **parameters: Any) -> dict[str, Any]:
    """Start a run as a user would, and wait for its end."""
    return server.wait(server.start(deployment, **parameters))


def _flows(server: Server, run: dict[str, Any]) -> list[str]:
    """Ids of a run and of its iterations."""
    inner = server.post("/flow_runs/filter", {"flow_runs": {"parent_flow_run_id": {"any_": [run["id"]]}}}).json()
    return [run["id"], *(one["id"] for one in inner)]


def _tasks(server: Server, run: dict[str, Any]) -> list[dict[str, Any]]:
    """The task runs of a run and of its iterations, once all have ended."""
    return server.tasks(_flows(server, run))


def _states(server: Server, run: dict[str, Any]) -> dict[str, str]:
    """Names of the states of a run's tasks and of its iterations' tasks, by task run."""
    return {task["name"]: task["state_name"] for task in _tasks(server, run)}


def _artifacts(server: Server, run: dict[str, Any]) -> list[dict[str, Any]]:
    """Those that somebody named; Prefect keeps results as artifacts too."""
    asked = {"artifacts": {"flow_run_id": {"any_": _flows(server, run)}}, "limit": 200}
    return [one for one in server.post("/artifacts/filter", asked).json() if one["key"]]


def _log(server: Server, run: dict[str, Any]) -> list[str]:
    """The messages of a run, its iterations and their tasks."""
    asked = {"logs": {"flow_run_id": {"any_": _flows(server, run)}}, "limit": 200}
    return [one["message"] for one in server.post("/logs/filter", asked).json()]


ASKED = {
    "config_file": "smoke",
    "name": "first",
    "iterations": 1,
    "overrides": [*SMALL, "placement.concurrency_limit=rloop-gpu"],
}
STAGES = {"explore-000", "harvest-000", "filter-000", "rft-000", "evaluate-base", "evaluate-000"}


@pytest.fixture(scope="module")
def first(server: Server) -> dict[str, Any]:
    """A finished run, which had to wait for its turn."""
    with all_slots_taken(server, "rloop-gpu"):
        number = server.start("rloop/iterate", **ASKED)
        _wait_for_a_slot(server, number)
    return server.wait(number)


def test_a_deployed_run_completes_through_the_worker(server: Server, first: dict[str, Any]) -> None:
    assert (first["state_name"], first["name"]) == ("Completed", "first"), first["state"]["message"]
    states = _states(server, first)
    assert states.keys() >= STAGES and {states[stage] for stage in STAGES} == {"Completed"}
    run: Path = server.folder / "store/first"
    assert json.loads((run / "run.json").read_text())["config"]["explore"]["steps"] == 2
    assert len(list(run.rglob("manifest.json"))) == len(STAGES)
    _check_what_the_ui_shows(server, first)


@pytest.mark.long
def test_the_same_run_again_shows_cached_and_needs_no_slot(server: Server, first: dict[str, Any]) -> None:
    with all_slots_taken(server, "rloop-gpu"):
        second = _run(server, "rloop/iterate", **ASKED)
    again = _states(server, second)
    assert {again[stage] for stage in STAGES} == {"Cached"}
    assert second["state"]["message"] == first["state"]["message"]
    drawn = {artifact["key"] for artifact in _artifacts(server, second)}
    assert "first-report" in drawn and not any(key.endswith("-figure") for key in drawn)


def _wait_for_a_slot(server: Server, number: str) -> None:
    """Until a run's first stages say that they wait for their turn; nothing is computed meanwhile."""
    deadline = time.monotonic() + 240
    waiting = "waiting for a slot of the concurrency limit rloop-gpu: other stages hold them all"
    while not any(line.endswith(waiting) for line in _log(server, {"id": number})):
        assert time.monotonic() < deadline, (server.folder / "rloop-gpu.log").read_text()[-4000:]
        time.sleep(0.5)
    assert not list((server.folder / "store").rglob("stage.log")), "no stage may start before its turn"


def test_stages_that_share_a_slot_take_turns(server: Server) -> None:
    with all_slots_taken(server, "rloop-gpu"):
        pass
    spans = spans_held(server, "rloop-gpu", 3, 0.5)
    assert len(spans) == 3 and all(before[1] <= after[0] for before, after in itertools.pairwise(spans))
    assert spans_held(server, "no-such-limit", 2, 0.1), "a limit that nobody made holds nobody up"


def _check_what_the_ui_shows(server: Server, run: dict[str, Any]) -> None:
    """Names, tags, the result in one sentence, progress, tables, figures, the report, and a log that can be read."""
    message = r"1 iteration: held-out avg@2 \d+\.\d -> \d+\.\d %, pass@2 \d+\.\d -> \d+\.\d %"
    assert re.fullmatch(message, run["state"]["message"])
    assert set(run["tags"]) == {"rloop", "smoke", "first"}
    names = {task["name"] for task in _tasks(server, run) if not task["tags"]}
    assert {"explore-000", "evaluate-base"} <= names, (
        "a task run's tags would be looked up on a server that may be away"
    )

    shown = {artifact["key"]: artifact for artifact in _artifacts(server, run)}
    places = ["base-evaluate", *(f"000-{stage}" for stage in ("explore", "harvest", "filter", "rft", "evaluate"))]
    for name in (f"first-{place}" for place in places):
        assert shown[f"{name}-progress"]["type"] == "markdown" and "done in" in shown[f"{name}-progress"]["data"]
        assert shown[name]["type"] == "table" and json.loads(shown[name]["data"])
        figure = shown[f"{name}-figure"]
        assert figure["type"] == "markdown" and "](data:image/" in figure["data"] and len(figure["data"]) < 200_000
        assert shown[name]["task_run_id"] == figure["task_run_id"] == shown[f"{name}-progress"]["task_run_id"]
    progress = shown["first-000-explore-progress"]["data"]
    assert "| RL step | reward |" in progress and "tokens sampled" in progress

    page = server.folder / "store/first/report/report.html"
    report = shown["first-report"]["data"]
    assert page.is_file() and str(page) in report and f"rloop report first --store {server.folder / 'store'}" in report
    assert "| base |" in report and r"theta\_1 - base" in report
    for number in re.findall(r"/artifacts/artifact/([0-9a-f-]{36})", report):
        assert server.get(f"/artifacts/{number}")["key"].endswith("-figure")

    lines = _log(server, run)
    assert "explore 0: started (not in the store yet)" in lines
    assert any(line.startswith("explore 0: done in ") for line in lines)
    assert not any("FutureWarning" in line or "{'loss'" in line for line in lines)


@pytest.mark.long
def test_what_no_schema_can_tell_fails_the_run_with_the_field_and_the_fix(server: Server) -> None:
    failed = _run(server, "rloop/iterate", config_file="smoke", overrides=["explore.group_size=7"])
    assert failed["state_name"] == "Failed"
    assert re.fullmatch(r"explore\.group_size: 7 does not divide .* \(fix: .*\)", failed["state"]["message"])


@pytest.mark.long
def test_a_deployed_evaluation_says_where_its_samples_are(server: Server) -> None:
    out = server.folder / "evaluation"
    asked = {"problems": "reasoning_gym:chain_sum", "limit": 3, "samples": 2, "template": "plain", "max_tokens": 24}
    run = _run(server, "evaluate/model", **asked, out=str(out))
    assert (run["state_name"], run["name"]) == ("Completed", "bundled-on-reasoning_gym:chain_sum"), run["state"]
    assert json.loads((out / "metrics.json").read_text())["samples"] == 6
    (table,) = server.post("/artifacts/filter", {"artifacts": {"flow_run_id": {"any_": [run["id"]]}}}).json()
    assert {"avg@2", "pass@1", "majority@2"} == {row["metric"] for row in json.loads(table["data"])}
