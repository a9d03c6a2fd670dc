"""`rloop deploy` on a real server: what it creates once, what it leaves to the operator, and a run through a worker."""

from __future__ import annotations

import itertools
import json
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rloop_core
from rloop_core.config import load_config
from tests.conftest import ROOT
from tests.flows.server import Server, prefect_server
from tests.flows.turns import all_slots_taken, spans_held

pytestmark = pytest.mark.process

RUNS = {"rloop/iterate", "rloop/iterate-cpu", "rloop/nightly", "vanilla-rl/control"}
DEPLOYMENTS = RUNS | {"compare/arms", "evaluate/model"}
AUTOMATIONS = {
    f"rloop: {what}"
    for what in ("silent runs crash", "cancelled runs end", "crashed runs may go on", "resumable runs go on")
}


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with prefect_server(tmp_path_factory.mktemp("prefect")) as running:
        yield running


@pytest.fixture(scope="module")
def server(empty: Server) -> Server:
    """A server with everything deployed."""
    _deploy(empty)
    return empty


def _deploy(server: Server, *arguments: str) -> dict[str, dict[str, Any]]:
    """Return the changes, by name."""
    done = server.deploy("--json", *arguments)
    return {change["name"]: change for change in json.loads(done.stdout)["changes"]}


def _actions(changes: dict[str, dict[str, Any]]) -> set[str]:
    return {change["action"] for change in changes.values()}


def _deployment(server: Server, name: str) -> Any:
    return server.get(f"/deployments/name/{name}")


def _start(server: Server, name: str, parameters: dict[str, Any], **more: Any) -> int:
    """Schedule a run for a distant day, and return the status of the server's answer."""
    state = {"type": "SCHEDULED", "state_details": {"scheduled_time": "2100-01-01T00:00:00Z"}}
    path = f"/deployments/{_deployment(server, name)['id']}/create_flow_run"
    return server.post(path, {"parameters": parameters, "state": state, **more}).status_code


def test_a_dry_run_makes_nothing_the_first_call_all_and_the_second_nothing(empty: Server) -> None:
    server = empty
    needs = server.deploy("--pool-type", "kubernetes", check=False)
    assert needs.returncode == 2 and "outlives it" in needs.stderr
    assert _actions(_deploy(server, "--dry-run")) == {"created"}
    assert server.post("/work_pools/filter", {}).json() == []
    first = _deploy(server, "--store", "s3://bucket/runs")
    assert set(first) == DEPLOYMENTS | AUTOMATIONS | {"rloop-cpu", "rloop-gpu"} and _actions(first) == {"created"}
    assert _actions(_deploy(server, "--store", "s3://bucket/runs")) == {"left"}
    words = server.deploy().stdout.splitlines()
    assert words[-1] == "nothing to change: the server has it all"
    assert "left     deployment  rloop/iterate  (kept: store s3://bucket/runs)" in words


def test_the_operators_settings_stay_and_everything_else_is_put_right(server: Server) -> None:
    nightly = _deployment(server, "rloop/nightly")
    assert not nightly["schedules"][0]["active"]
    server.patch(f"/deployments/{nightly['id']}/schedules/{nightly['schedules'][0]['id']}", {"active": True})
    server.patch(f"/deployments/{nightly['id']}", {"tags": ["somebody's"]})
    server.patch("/work_pools/rloop-gpu", {"concurrency_limit": 7, "description": "somebody's"})
    changes = _deploy(server)
    assert changes["rloop-gpu"]["details"] == ["description", "kept: limit 7"]
    assert changes["rloop/nightly"]["details"] == [
        "tags",
        "kept: store s3://bucket/runs",
        "kept: schedule nightly is on",
    ]
    assert {name for name, one in changes.items() if one["action"] == "changed"} == {"rloop-gpu", "rloop/nightly"}
    assert server.get("/work_pools/rloop-gpu")["concurrency_limit"] == 7
    nightly = _deployment(server, "rloop/nightly")
    assert nightly["schedules"][0]["active"] and nightly["tags"] == ["rloop"]
    assert nightly["parameters"] == {
        "store": "s3://bucket/runs",
        "config_file": "qwen2.5-math-7b",
        "name": "nightly-{date}",
    }
    server.patch(f"/deployments/{nightly['id']}/schedules/{nightly['schedules'][0]['id']}", {"active": False})


def test_the_server_holds_no_path_of_this_machine(server: Server) -> None:
    for name in DEPLOYMENTS:
        one = _deployment(server, name)
        assert str(ROOT) not in json.dumps(one)
        strategy = "CANCEL_NEW" if name == "rloop/nightly" else "ENQUEUE"
        assert one["enforce_parameter_schema"] and one["concurrency_options"]["collision_strategy"] == strategy
        assert one["version"] == rloop_core.__version__


def test_every_field_of_a_form_says_what_it_is(server: Server) -> None:
    for name in DEPLOYMENTS:
        schema = _deployment(server, name)["parameter_openapi_schema"]
        for field, form in schema["properties"].items():
            assert form.get("description"), f"{name}: {field}"
        assert schema["properties"].get("config_file", {}).get("enum", ["demo"])[0] == "demo"
        for definition in schema.get("definitions", {}).values():
            for field, form in definition["properties"].items():
                described = form.get("description") or schema["definitions"][form["$ref"].split("/")[-1]]["description"]
                assert described, f"{definition['title']}.{field}"


@pytest.mark.parametrize("path", sorted((ROOT / "deployments/configs").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_config_is_accepted_by_name_and_whole(server: Server, path: Path) -> None:
    assert _start(server, "rloop/iterate", {"config_file": path.stem, "overrides": ["explore.steps=2"]}) == 201
    whole = load_config(path).model_dump(mode="json")
    assert _start(server, "vanilla-rl/control", {"config": whole}) == 201


def test_few_fields_are_enough(server: Server) -> None:
    assert _start(server, "rloop/iterate", {}) == 201
    assert _start(server, "rloop/iterate", {"config": {"problems": {"source": "dapo17k"}}}) == 201
    assert _start(server, "evaluate/model", {"problems": "math500", "limit": 3, "verifier": {"units": "ignore"}}) == 201
    assert _start(server, "compare/arms", {"run": "demo", "vanilla": "demo-vanilla-rl"}) == 201


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("rloop/iterate", {"config_file": "no-such-config"}),
        ("rloop/iterate", {"iterations": 0}),
        ("rloop/iterate", {"name": "../up"}),
        ("rloop/iterate", {"overrides": ["explore.steps"]}),
        ("rloop/iterate", {"config": {"name": "x"}}),
        ("rloop/iterate", {"config": {"problems": {"source": "dapo17k"}, "explore": {"stepz": 1}}}),
        ("rloop/iterate", {"config": {"problems": {"source": "dapo17k"}, "explore": {"steps": "many"}}}),
        ("rloop/iterate", {"config": {"problems": {"source": "dapo17k"}, "explore": {"learning_rate": -1.0}}}),
        ("rloop/iterate", {"config": {"problems": {"source": "dapo17k"}, "filter": {"on_empty": "explode"}}}),
        ("rloop/iterate", {"store": "s3://id:word@bucket/x"}),
        ("rloop/iterate", {"overrides": ["placement.store='s3://id:wo/rd@bucket/x'"]}),
        ("rloop/iterate", {"config": {"problems": {"source": "dapo17k"}, "placement": {"store": "s3://id:w@b"}}}),
        ("compare/arms", {"run": "demo", "vanilla": "demo-vanilla-rl", "store": "s3://b/x?secret=word"}),
        ("vanilla-rl/control", {"config_file": "no-such-config"}),
        ("compare/arms", {"run": "demo"}),
        ("evaluate/model", {"samples": 0}),
        ("evaluate/model", {"template": "sonnet"}),
        ("evaluate/model", {"verifier": {"units": "sometimes"}}),
    ],
)
def test_nonsense_is_refused_when_the_run_is_created(server: Server, name: str, parameters: dict[str, Any]) -> None:
    assert _start(server, name, parameters) in (409, 422)


@pytest.mark.parametrize("values", [{"command": "sh"}, {"env": {"PYTHONPATH": "/x"}}, {"env.PYTHONPATH": "/x"}])
def test_job_variables_that_run_something_else_are_refused_when_the_run_is_created(
    server: Server, values: dict[str, Any]
) -> None:
    assert _start(server, "rloop/iterate", {}, job_variables=values) == 422
    assert _start(server, "rloop/iterate", {}, job_variables={"env": {"HF_HOME": "/models"}}) == 201


def test_prefects_command_refuses_a_field_that_the_form_has_not(server: Server) -> None:
    refused = server.call("prefect", "deployment", "run", "rloop/iterate", "-p", "iteration=1", check=False)
    assert refused.returncode and "iterations" in refused.stdout + refused.stderr


def test_a_pools_type_is_fixed(server: Server) -> None:
    refused = server.deploy("--pool-type", "docker", "--store", "s3://b/p", check=False)
    assert refused.returncode == 2 and "prefect work-pool delete rloop-gpu" in refused.stderr


def test_what_goes_wrong_is_said_in_one_line(server: Server) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        nobody = f"http://127.0.0.1:{taken.getsockname()[1] + 1}/api"
    cases = {
        "no Prefect server is named": server.deploy(check=False, PREFECT_API_URL=None),
        "no Prefect server answers": server.deploy("--api", nobody, check=False),
        "PREFECT_API_AUTH_STRING": server.deploy(check=False, PREFECT_API_AUTH_STRING="a:b"),
        "credentials from": server.deploy("--store", "s3://key:word@bucket/x", check=False),
    }
    for words, done in cases.items():
        assert done.returncode == 2 and words in done.stderr, done.stderr
        assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.long
def test_prefects_own_command_makes_the_same_deployments(server: Server) -> None:
    file = "deployments/prefect.yaml"
    done = server.call("prefect", "--no-prompt", "deploy", "--all", "--prefect-file", file, COLUMNS="200")
    assert done.stdout.count("successfully created") == len(DEPLOYMENTS)
    assert _actions(_deploy(server)) == {"left"}


SMALL = ["explore.steps=2", "evaluate.samples=2", "evaluate.k=[1, 2]"]


@pytest.fixture(scope="module")
def worked(server: Server) -> Iterator[Server]:
    """A server with a worker of the GPU pool, started in a folder without a store."""
    with server.worker("rloop-gpu"):
        yield server


def _run(server: Server, deployment: str, **parameters: Any) -> dict[str, Any]:
    """Start a run as a user would, and wait for its end."""
    return server.wait(server.start(deployment, store=str(server.folder / "store"), **parameters))


def _flows(server: Server, run: dict[str, Any]) -> list[str]:
    """Return the ids of a run and of its iterations."""
    inner = server.post("/flow_runs/filter", {"flow_runs": {"parent_flow_run_id": {"any_": [run["id"]]}}}).json()
    return [run["id"], *(one["id"] for one in inner)]


def _tasks(server: Server, run: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the task runs of a run and of its iterations, once all have ended."""
    return server.tasks(_flows(server, run))


def _states(server: Server, run: dict[str, Any]) -> dict[str, str]:
    """Return the state names of the tasks of a run and of its iterations, by task run."""
    return {task["name"]: task["state_name"] for task in _tasks(server, run)}


def _artifacts(server: Server, run: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the artifacts with a key; Prefect keeps results as artifacts too."""
    asked = {"artifacts": {"flow_run_id": {"any_": _flows(server, run)}}, "limit": 200}
    return [one for one in server.post("/artifacts/filter", asked).json() if one["key"]]


def _log(server: Server, run: dict[str, Any]) -> list[str]:
    """Return the log messages of a run, its iterations and their tasks."""
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
def first(worked: Server) -> dict[str, Any]:
    """A finished run, which had to wait for its turn."""
    with all_slots_taken(worked, "rloop-gpu"):
        number = worked.start("rloop/iterate", store=str(worked.folder / "store"), **ASKED)
        _wait_for_a_slot(worked, number)
    return worked.wait(number)


def test_a_deployed_run_completes_through_the_worker(server: Server, first: dict[str, Any]) -> None:
    assert (first["state_name"], first["name"]) == ("Completed", "first"), first["state"]["message"]
    states = _states(server, first)
    assert states.keys() >= STAGES and {states[stage] for stage in STAGES} == {"Completed"}
    run: Path = server.folder / "store/first"
    assert json.loads((run / "run.json").read_text())["config"]["explore"]["steps"] == 2
    assert len(list(run.rglob("manifest.json"))) == len(STAGES)
    _check_what_the_ui_shows(server, first)


def test_a_schedule_that_is_switched_on_starts_the_same_run_again_which_is_cached_and_needs_no_slot(
    worked: Server, first: dict[str, Any]
) -> None:
    with all_slots_taken(worked, "rloop-gpu"):
        second = worked.scheduled("rloop/nightly", {**ASKED, "store": str(worked.folder / "store")})
    assert (second["state_name"], second["name"]) == ("Completed", "first"), second["state"]["message"]
    again = _states(worked, second)
    assert {again[stage] for stage in STAGES} == {"Cached"}
    assert second["state"]["message"] == first["state"]["message"]
    drawn = {artifact["key"] for artifact in _artifacts(worked, second)}
    assert "first-report" in drawn and not any(key.endswith("-figure") for key in drawn)


def _wait_for_a_slot(server: Server, number: str) -> None:
    """Wait until a run's first stages log that they wait for a slot; nothing is computed meanwhile."""
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
def test_what_no_schema_can_tell_fails_the_run_with_the_field_and_the_fix(worked: Server) -> None:
    failed = _run(worked, "rloop/iterate", config_file="smoke", overrides=["explore.group_size=7"])
    assert failed["state_name"] == "Failed"
    assert re.fullmatch(r"explore\.group_size: 7 does not divide .* \(fix: .*\)", failed["state"]["message"])


@pytest.mark.long
@pytest.mark.parametrize(
    "wrong", [["policy.path=/no/such/model"], [*SMALL, "filter.min_attempts=1000", "filter.on_empty=fail"]]
)
def test_an_expected_failure_is_one_error_line_of_the_log(worked: Server, wrong: list[str]) -> None:
    overrides = [*wrong, "evaluate.base=false"]
    failed = _run(worked, "rloop/iterate", config_file="smoke", name="failing", overrides=overrides)
    assert failed["state_name"] == "Failed" and "(fix: " in failed["state"]["message"]
    asked = {"logs": {"flow_run_id": {"any_": _flows(worked, failed)}, "level": {"ge_": 40}}}
    deadline = time.monotonic() + 60
    while True:  # the last lines come after the state
        errors = [one["message"] for one in worked.post("/logs/filter", asked).json()]
        if failed["state"]["message"] in errors or time.monotonic() > deadline:
            break
        time.sleep(0.5)
    assert errors.count(failed["state"]["message"]) == 1 and not any("\n" in error for error in errors), errors


@pytest.mark.long
def test_a_deployed_evaluation_says_where_its_samples_are(worked: Server) -> None:
    server = worked
    out = server.folder / "evaluation"
    asked = {"problems": "reasoning_gym:chain_sum", "limit": 3, "samples": 2, "template": "plain", "max_tokens": 24}
    run = server.wait(server.start("evaluate/model", **asked, out=str(out)))
    assert (run["state_name"], run["name"]) == ("Completed", "bundled-on-reasoning_gym:chain_sum"), run["state"]
    assert json.loads((out / "metrics.json").read_text())["samples"] == 6
    (table,) = server.post("/artifacts/filter", {"artifacts": {"flow_run_id": {"any_": [run["id"]]}}}).json()
    assert {"avg@2", "pass@1", "majority@2"} == {row["metric"] for row in json.loads(table["data"])}
