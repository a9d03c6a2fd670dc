"""Automations: made by `rloop deploy`, kept as the operator has them, and sending notifications."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import SMOKE
from tests.faults.conftest import wait_until
from tests.flows.disturbed import receiver
from tests.flows.postgres import is_installed, postgres_server
from tests.flows.server import Server, prefect_server

SILENT, TELL = "rloop: silent runs crash", "rloop: tell of trouble"
MAY, GO = "rloop: crashed runs may go on", "rloop: resumable runs go on"

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with everything deployed, on Postgres if it is installed."""
    folder = tmp_path_factory.mktemp("prefect")
    database = postgres_server(folder / "postgres.log") if is_installed() else nullcontext(None)
    act = {"PREFECT_SERVER_SERVICES_TRIGGERS_ENABLED": "true"}
    with database as address, prefect_server(folder, address, **act) as running:
        _deploy(running)
        yield running


def _deploy(server: Server, *arguments: str) -> dict[str, dict[str, Any]]:
    """Return the change of each automation, by its name."""
    done = server.deploy("--json", *arguments)
    changes = json.loads(done.stdout)["changes"]
    return {change["name"]: change for change in changes if change["kind"] == "automation"}


def _automation(server: Server, name: str) -> Any:
    found = server.post("/automations/filter", {"automations": {"name": {"any_": [name]}}}).json()
    assert len(found) == 1, found
    return found[0]


def test_what_was_asked_for_once_stays_and_what_somebody_changed_is_put_right(server: Server) -> None:
    assert _automation(server, SILENT)["trigger"]["within"] == 300
    assert _automation(server, MAY)["trigger"]["match"]["prefect.run-count"] == ["1", "2", "3"]
    changed = _deploy(server, "--resumes", "2", "--silence", "60")
    assert {name for name, one in changed.items() if one["action"] != "left"} == {SILENT, MAY}
    assert {one["action"] for one in _deploy(server).values()} == {"left"}
    assert _automation(server, SILENT)["trigger"]["within"] == 60
    assert _automation(server, MAY)["trigger"]["match"]["prefect.run-count"] == ["1", "2"]

    server.patch(f"/automations/{_automation(server, SILENT)['id']}", {"enabled": False})
    assert _deploy(server)[SILENT]["details"][-1] == "kept: off"
    somebodys = _automation(server, GO)
    edited = {"name": GO, "trigger": somebodys["trigger"], "actions": [{"type": "do-nothing"}]}
    server.put(f"/automations/{somebodys['id']}", edited)
    assert _deploy(server)[GO]["action"] == "changed"
    assert _automation(server, GO)["actions"][0]["state"] == "SCHEDULED"
    assert not _automation(server, SILENT)["enabled"]


def test_no_automation_points_to_a_block_that_is_not_there(server: Server) -> None:
    refused = server.deploy("--notify", "custom-webhook/nobody", check=False)
    assert refused.returncode == 2 and "has no block 'custom-webhook/nobody'" in refused.stderr
    assert server.post("/automations/filter", {"automations": {"name": {"any_": [TELL]}}}).json() == []


def test_a_failure_and_an_empty_expert_set_are_told_to_the_block_that_was_named(server: Server, tmp_path: Path) -> None:
    told: list[dict[str, str]] = []
    with receiver(told) as address:
        _save_webhook(server, address)
        assert _deploy(server, "--notify", "custom-webhook/team")[TELL]["action"] == "created"
        assert _deploy(server)[TELL]["action"] == "left"

        deployment = server.get("/deployments/name/rloop/iterate")["id"]
        run = server.post(f"/deployments/{deployment}/create_flow_run", {"name": "third"}).json()
        failed = {"type": "FAILED", "message": "the fix is to do it otherwise"}
        server.post(f"/flow_runs/{run['id']}/set_state", {"state": failed, "force": True})
        wait_until(lambda: told, "word of the failure", every=0.2)
        assert "prefect.flow-run.Failed" in told[0]["subject"]
        assert "the fix is to do it otherwise" in told[0]["body"] and run["id"] in told[0]["body"]

        nothing = ["filter.min_successes=1000", "explore.steps=1", "iterations=1", "evaluate.sets=[]"]
        given = [part for one in nothing for part in ("--set", one)]
        command = ["run", "--config", str(SMOKE), "--name", "poor", "--store", str(tmp_path / "store"), *given]
        server.call("rloop_core", *command)
        events = {"event": {"name": ["rloop.expert-set.empty"]}}
        wait_until(lambda: server.post("/events/filter", {"filter": events}).json()["events"], "the event", every=0.5)
        wait_until(lambda: len(told) > 1, "word of the empty expert set", every=0.2)
        assert told[1]["subject"] == "rloop: poor: rloop.expert-set.empty"
        assert "iteration 0 of poor has an empty expert set" in told[1]["body"]


def _save_webhook(server: Server, address: str) -> None:
    """Save a notification block, as an operator does in the UI."""
    kind = server.get("/block_types/slug/custom-webhook")
    schemas = server.post("/block_schemas/filter", {"block_schemas": {"block_type_id": {"any_": [kind["id"]]}}}).json()
    data = {"name": "team", "url": address, "json_data": {"subject": "{{subject}}", "body": "{{body}}"}}
    block = {
        "name": "team", "data": data, "block_type_id": kind["id"], "block_schema_id": schemas[0]["id"],
    }  # fmt: skip
    server.post("/block_documents/", block).raise_for_status()
