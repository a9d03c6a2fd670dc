"""A Prefect server on Postgres, as in the compose file and on Kubernetes: a deployment, and a run through a worker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import asyncpg
import pytest

from tests.flows.postgres import postgres_server
from tests.flows.server import Server, prefect_server

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with postgres_server(tmp_path_factory.mktemp("database") / "postgres.log") as address:
        yield address


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, database: str) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("prefect")
    with prefect_server(folder, database) as running:
        running.deploy()
        with running.worker("rloop-gpu"):
            yield running


def _query(database: str, text: str) -> list[asyncpg.Record]:
    async def ask() -> list[asyncpg.Record]:
        connection = await asyncpg.connect(database.replace("+asyncpg", ""))
        try:
            return list(await connection.fetch(text))
        finally:
            await connection.close()

    return asyncio.run(ask())


def test_a_deployed_run_completes_and_postgres_holds_it(server: Server, database: str) -> None:
    small = ["explore.steps=2", "evaluate.samples=2", "evaluate.k=[1, 2]", "evaluate.base=false"]
    number = server.start("rloop/iterate", config_file="smoke", name="first", iterations=1, overrides=small)
    run = server.wait(number)
    assert run["state_name"] == "Completed", run["state"]["message"]
    rows = _query(database, "select name, state_type::text as state from flow_run")
    assert {(row["name"], row["state"]) for row in rows} == {("first", "COMPLETED"), ("iteration-000", "COMPLETED")}
    stages = {f"{stage}-000" for stage in ("explore", "harvest", "filter", "rft", "evaluate")}
    for _ in range(300):  # task runs reach the database as events, a little after they end
        rows = _query(database, "select name, state_type::text as state from task_run")
        completed = {row["name"] for row in rows if row["state"] == "COMPLETED"}
        if stages <= completed:
            break
        time.sleep(0.2)
    assert stages <= completed
    assert not list((server.folder / "server").rglob("prefect.db")), "it is Postgres that was asked to hold it"


def test_a_schedule_that_is_switched_on_starts_runs_that_complete(server: Server) -> None:
    small = ["explore.steps=2", "evaluate.samples=2", "evaluate.k=[1, 2]", "evaluate.base=false"]
    asked = {"config_file": "smoke", "name": "scheduled", "iterations": 1, "overrides": small}
    run = server.scheduled("rloop/nightly", {**asked, "store": str(server.folder / "store")})
    assert (run["state_name"], run["name"]) == ("Completed", "scheduled"), run["state"]["message"]
