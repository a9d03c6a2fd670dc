"""`rloop deploy` on a real server: what it makes, that it makes it once, and what it leaves to the operator."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rloop_core
from rloop_core.config import load_config
from tests.conftest import ROOT
from tests.flows.server import Server, prefect_server

pytestmark = pytest.mark.process

RUNS = {"rloop/iterate", "rloop/iterate-cpu", "rloop/nightly", "vanilla-rl/control"}
STAGES = {"rloop-stage/rloop-cpu", "rloop-stage/rloop-gpu"}
DEPLOYMENTS = RUNS | STAGES | {"compare/arms", "evaluate/model"}
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
    """With everything deployed."""
    _deploy(empty)
    return empty


def _deploy(server: Server, *arguments: str) -> dict[str, dict[str, Any]]:
    """The changes, by the name of what was changed."""
    done = server.deploy("--json", *arguments)
    return {change["name"]: change for change in json.loads(done.stdout)["changes"]}


def _actions(changes: dict[str, dict[str, Any]]) -> set[str]:
    return {change["action"] for change in changes.values()}


def _deployment(server: Server, name: str) -> Any:
    return server.get(f"/deployments/name/{name}")


def _start(server: Server, name: str, parameters: dict[str, Any]) -> int:
    """The status with which the server answers a run of tomorrow."""
    state = {"type": "SCHEDULED", "state_details": {"scheduled_time": "2100-01-01T00:00:00Z"}}
    path = f"/deployments/{_deployment(server, name)['id']}/create_flow_run"
    return server.post(path, {"parameters": parameters, "state": state}).status_code


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
    assert nightly["parameters"] == {"store": "s3://bucket/runs", "config_file": "qwen2.5-math-7b", "name": "nightly"}


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
