"""A stage that a worker of another pool computes for a run: who may begin it, what stops it, what the run is told."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from rloop_core.config import Config
from rloop_core.errors import ConfigError, LeaseError, StageError
from rloop_core.stages.garbage import delete_garbage, find_garbage
from rloop_core.stages.inputs import Inputs
from rloop_core.stages.preflight import check_light
from rloop_core.stages.remote import RemoteRequest, RemoteStage
from rloop_core.stages.remote_worker import NoLongerWanted, compute_remote_stage
from rloop_core.stages.run_record import write_run_record
from rloop_core.stages.runner import StageRunner
from rloop_core.store import DelegatedLease, Lease, Store, manifest_key
from tests.conftest import ROOT, small_config

pytestmark = pytest.mark.process

HOLD = """
import sys, time
from rloop_core.store import Lease, Store
with Lease(Store(sys.argv[1]), "away") as lease:
    print(lease.token, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "store"))


def _config(store: Store, pool: str = "there", **explore: Any) -> Config:
    placement = {"store": store.uri, "pools": {"explore": pool}}
    return small_config(name="away", explore={"steps": 1, **explore}, placement=placement)


def _request(config: Config, store: Store, token: str) -> RemoteRequest:
    runner = StageRunner(config, store, None)
    return RemoteRequest(config.model_dump(mode="json"), runner._wanted("explore", 0).fingerprint, token)


def _remote(store: Store, config: Config | None = None, token: str = "t") -> RemoteStage:
    """A stage that was requested."""
    remote = RemoteStage.new(store, "away", "explore", 0)
    remote.send(_request(config, store, token) if config else RemoteRequest({}, "f", token))
    return remote


def test_a_request_is_taken_once_and_not_after_it_was_withdrawn(store: Store) -> None:
    remote = _remote(store)
    assert remote.take().fingerprint == "f"
    with pytest.raises(StageError, match="another worker has taken it"):
        remote.take()
    remote.withdraw()
    with pytest.raises(StageError, match="no run waits for this request"):
        remote.take()
    assert store.list("away/requests") == []


def test_a_stage_of_another_pool_is_published_there_and_its_manifest_counts(store: Store) -> None:
    config = _config(store)
    events: list[str] = []
    there: list[str] = []

    def in_pool(pool: str, remote: RemoteStage, request: RemoteRequest, on_event: Any, **limits: Any) -> bool:
        assert (pool, limits["untaken_seconds"]) == ("there", 60 * config.placement.stage_stall_minutes)
        remote.send(request)
        compute_remote_stage(remote, remote.take(), lambda *event: there.append(event[2]["kind"]))
        remote.withdraw()
        return True

    def unused(*job: Any, **settings: Any) -> Any:
        raise AssertionError("computed here")

    with Lease(store, "away") as lease:
        runner = StageRunner(config, store, lease, lambda *event: events.append(event[2]["kind"]), unused, in_pool)
        assert not runner.ensure("explore", 0).cached
        assert runner.ensure("explore", 0).cached
    assert events == ["start", "done", "cached"]
    assert there == ["log", "step", "done"]
    assert store.list("away/requests") == [], "nothing of it is left"


def test_a_pool_that_is_the_run_s_own_computes_with_the_run(store: Store) -> None:
    with Lease(store, "away") as lease:
        runner = StageRunner(_config(store), store, lease, in_pool=lambda *asked, **limits: False)
        assert not runner.ensure("explore", 0).cached
    assert store.list("away/requests") == []


def test_a_worker_that_would_compute_something_else_refuses_and_its_run_is_told_why(store: Store) -> None:
    config = _config(store)
    with Lease(store, "away") as lease:
        other = _request(_config(store, learning_rate=0.5), store, lease.token)
        remote = RemoteStage.new(store, "away", "explore", 0)
        remote.send(RemoteRequest(config.model_dump(mode="json"), other.fingerprint, lease.token))
        with pytest.raises(
            StageError, match=r"would compute something else.*\(fix: give it the same release"
        ) as raised:
            compute_remote_stage(remote, remote.take())
    error = remote.error()
    assert type(error) is StageError and str(error) == str(raised.value)
    assert not store.exists(manifest_key("away", 0, "explore"))


def test_kill_9_of_the_run_ends_its_stage_elsewhere_and_nothing_is_published(store: Store) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, store.uri], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )  # fmt: skip
    assert holder.stdout is not None
    remote = _remote(store, _config(store, steps=500), holder.stdout.readline().strip())
    with pytest.raises(NoLongerWanted, match="no longer wants it"):
        compute_remote_stage(
            remote, remote.take(), lambda *event: holder.kill() if event[2]["kind"] == "step" else None
        )
    holder.wait()
    assert remote.error() is None
    assert not store.exists(manifest_key("away", 0, "explore"))


def test_a_borrowed_lease_is_worth_as_much_as_its_holder(store: Store) -> None:
    with Lease(store, "away", heartbeat=0.1) as lease:
        mine = DelegatedLease(store, "away", lease.token, patience=0.5)
        assert not mine.is_over()
        mine.ensure_held()
        another = DelegatedLease(store, "away", "another")
        assert another.is_over()
        with pytest.raises(LeaseError, match="is over"):
            another.ensure_held()
    with pytest.raises(LeaseError):
        mine.ensure_held()
    deadline = threading.Event()
    while not mine.is_over():
        assert not deadline.wait(0.05)


def test_a_store_that_means_another_place_elsewhere_is_refused_before_anything_is_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for uri in (".rloop/store", "memory://store"):
        config = small_config(placement={"store": uri, "pools": {"filter": "there"}})
        with pytest.raises(ConfigError, match=r"placement.store: .* another place to every worker.*fix: name a store"):
            check_light(config, Store(uri), Inputs(config, Store(uri)))


def test_garbage_collection_deletes_the_requests_of_a_run_that_is_over(store: Store) -> None:
    write_run_record(store, _config(store))
    _remote(store)
    found = find_garbage(store, ["away"], older_than=-60)
    assert [item.why for one in found for item in one.items] == ["a request of a run that is over"]
    delete_garbage(store, found, older_than=-60)
    assert store.list("away/requests") == []
