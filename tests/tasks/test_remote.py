"""A run waits for a stage in another pool, on a real Prefect API; the test plays the worker."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextvars import copy_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import FlowRun, State
from prefect.events import Event
from prefect.events.clients import get_events_client
from prefect.states import Completed, Crashed, Failed, Running

from flows.stage import rloop_stage
from rloop_core.errors import ArtifactDamaged, ConfigError, StageCrashed, StageError
from rloop_core.stages.remote import RemoteRequest, RemoteStage
from rloop_core.store import Store
from tasks import remote as module
from tasks.remote import compute_in_pool
from tests.conftest import embedded_prefect
from tests.faults.conftest import wait_until

pytestmark = pytest.mark.process
Work = Callable[[SyncPrefectClient, FlowRun], Any]


@pytest.fixture(autouse=True)
def client(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A client of a server that has a deployment for the pool `there`, and no worker; waiting runs ask often."""
    embedded_prefect()
    monkeypatch.setattr(module, "ASK_SECONDS", 0.1)
    with get_client(sync_client=True) as client:
        flow = client.create_flow(rloop_stage)
        client.create_deployment(flow, "there", entrypoint="flows/stage.py:rloop_stage")
        yield client


@pytest.fixture
def remote(tmp_path: Path) -> RemoteStage:
    return RemoteStage.new(Store(str(tmp_path)), "away", "explore", 0)


def _compute(
    remote: RemoteStage,
    work: Work | None = None,
    *,
    pool: str = "there",
    untaken: float | None = None,
    stop: bool = False,
    notes: list[str] | None = None,
) -> None:
    """Wait for the stage while `work`, if there is a worker, does what one would."""

    def worker(work: Work) -> None:
        with get_client(sync_client=True) as client:
            wait_until(lambda: _sent(client, remote), "the flow run", every=0.1)
            work(client, _sent(client, remote)[0])

    def tell(event: dict[str, Any]) -> None:
        assert notes is not None, event
        notes.append(event["note"])

    if work:  # without a flow run to wait for, the thread would ask the server until all tests have ended
        threading.Thread(target=copy_context().run, args=(worker, work), daemon=True).start()
    limits = {"untaken_seconds": untaken, "should_stop": lambda: stop}
    try:
        assert compute_in_pool(pool, remote, RemoteRequest({}, "f", "t"), tell, **limits)
    finally:
        assert remote.store.list("away/requests") == [], "nothing of it is left"


def _sent(client: SyncPrefectClient, remote: RemoteStage) -> list[FlowRun]:
    return [run for run in client.read_flow_runs() if run.parameters.get("request") == remote.name]


def _ends(state: State[Any]) -> Work:
    return lambda client, sent: client.set_flow_run_state(sent.id, state, force=True)


def test_it_is_over_when_its_flow_run_has_completed(remote: RemoteStage) -> None:
    def work(client: SyncPrefectClient, sent: FlowRun) -> None:
        assert (sent.parameters["stage"], sent.parameters["iteration"]) == ("explore", 0)
        assert remote.take() == RemoteRequest({}, "f", "t")
        _ends(Completed())(client, sent)

    _compute(remote, work)


def test_the_worker_s_own_error_is_raised_as_it_was(remote: RemoteStage) -> None:
    def work(client: SyncPrefectClient, sent: FlowRun) -> None:
        remote.fail(ArtifactDamaged("is torn", field="s3://b/x", fix="run it again"))
        _ends(Failed(message="see above"))(client, sent)

    with pytest.raises(ArtifactDamaged, match=r"s3://b/x: is torn \(fix: run it again\)"):
        _compute(remote, work)


@pytest.mark.parametrize(
    ("work", "said"),
    [
        (_ends(Crashed(message="exit code -9")), r"ended without a result \(Crashed: exit code -9\)"),
        (lambda client, sent: client.delete_flow_run(sent.id), "it was deleted"),
    ],
)
def test_without_one_it_is_a_crash(remote: RemoteStage, work: Work, said: str) -> None:
    with pytest.raises(StageCrashed, match=said):
        _compute(remote, work)


def test_a_pool_without_a_worker_is_named_and_not_waited_for_in_vain(
    client: SyncPrefectClient, remote: RemoteStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "UNTAKEN_SECONDS", 1.0)
    notes: list[str] = []
    with pytest.raises(StageCrashed, match=r"no worker has taken it for 4 s \(placement.stage_stall_minutes\)"):
        _compute(remote, untaken=4.0, notes=notes)
    start = "(start one: prefect worker start --pool there)"
    assert notes[:2] == [f"no worker of pool there has taken it for {seconds} s {start}" for seconds in (1, 2)]
    _is_cancelled(client, remote)


def test_heartbeats_that_stop_are_a_crash(
    client: SyncPrefectClient, remote: RemoteStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SILENT_SECONDS", 1.0)
    heard = _listen(monkeypatch)

    def work(client: SyncPrefectClient, sent: FlowRun) -> None:
        _live(client, sent, heard)

    with pytest.raises(StageCrashed, match="has sent no heartbeat for 1 s"):
        _compute(remote, work)
    _is_cancelled(client, remote)


def test_a_server_that_is_away_is_nobody_s_silence(
    client: SyncPrefectClient, remote: RemoteStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = _listen(monkeypatch)
    look, away = module._look, [0.0]
    answers: list[Any] = []

    def slow(sent: UUID) -> Any:
        """Take long twice: the server does not answer, and then it answers late, with no later heartbeat."""
        answer = look(sent)
        if len(heard) >= 3 and len(away) < 3:
            away.append(away[-1] + 2 * module.SILENT_SECONDS)
            answer = (None, None) if len(away) == 2 else answers[-2]
        answers.append(answer)
        return answer

    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + away[-1], sleep=time.sleep)
    monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(module, "_look", slow)

    def work(client: SyncPrefectClient, sent: FlowRun) -> None:
        _live(client, sent, heard)
        wait_until(lambda: len(heard) > 6, "looks after the server is back")
        _ends(Completed())(client, sent)

    _compute(remote, work)


def test_told_to_stop_it_stops_its_flow_run(client: SyncPrefectClient, remote: RemoteStage) -> None:
    with pytest.raises(StageError, match="was stopped"):
        _compute(remote, stop=True)
    _is_cancelled(client, remote)


def _listen(monkeypatch: pytest.MonkeyPatch) -> list[UUID]:
    """Return the heartbeats that looks at the flow run find from now on."""
    look, heard = module._look, list[UUID]()

    def listening(sent: UUID) -> Any:
        state, heartbeat = look(sent)
        heard.extend([heartbeat] if heartbeat else [])
        return state, heartbeat

    monkeypatch.setattr(module, "_look", listening)
    return heard


def _live(client: SyncPrefectClient, sent: FlowRun, heard: list[UUID]) -> None:
    """Run, and send a heartbeat by a connection of its own: Prefect's goes to the first server that a process had."""
    client.set_flow_run_state(sent.id, Running(), force=True)
    resource = {"prefect.resource.id": f"prefect.flow-run.{sent.id}"}

    async def emit() -> None:
        async with get_events_client() as events:
            await events.emit(Event(event="prefect.flow-run.heartbeat", resource=resource))

    asyncio.run(emit())
    wait_until(lambda: bool(heard), "the heartbeat")


def _is_cancelled(client: SyncPrefectClient, remote: RemoteStage) -> None:
    state = _sent(client, remote)[0].state
    assert state is not None and (state.is_cancelling() or state.is_cancelled())


def test_a_pool_without_its_deployment_is_named(remote: RemoteStage) -> None:
    with pytest.raises(
        ConfigError, match=r"placement.pools.explore: the Prefect server has no deployment rloop-stage/no"
    ):
        _compute(remote, pool="no")
