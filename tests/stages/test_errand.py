"""A stage that another process computes for a run: who may begin it, what stops it, and what the run is told."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rloop_core.config import Config
from rloop_core.errors import ConfigError, LeaseError, StageCrashed, StageError
from rloop_core.stages import elsewhere
from rloop_core.stages.carry_out import NoLongerWanted, carry_out
from rloop_core.stages.elsewhere import follow
from rloop_core.stages.errand import Errand, Order, Report
from rloop_core.stages.garbage import delete_garbage, find_garbage
from rloop_core.stages.run_record import write_run_record
from rloop_core.stages.runner import StageRunner
from rloop_core.store import BorrowedLease, Lease, Store, fingerprint, manifest_key
from tests.conftest import ROOT, small_config

pytestmark = pytest.mark.process

HOLD = """
import sys, time
from rloop_core.store import Lease, Store
with Lease(Store(sys.argv[1]), "away") as lease:
    print(lease.token, flush=True)
    time.sleep(600)
"""


class Sent:
    """A stage that a scheduler was given."""

    def __init__(self, how: str | None = None) -> None:
        self.how = how
        self.was_ended = False

    def ended(self) -> str | None:
        """How it ended."""
        return self.how

    def end(self) -> None:
        """Note that it was asked for."""
        self.was_ended = True


class Pools:
    """Sends nowhere, or to a thread of this process that carries the errand out."""

    def __init__(self, sent: Sent, work: Callable[[Errand], Any] = lambda errand: None) -> None:
        self.sent = sent
        self._work = work

    def is_here(self, pool: str) -> bool:
        """Nothing is sent to where the run is."""
        return pool == "here"

    def send(self, pool: str, errand: Errand) -> Sent:
        """Begin it, elsewhere."""
        threading.Thread(target=self._work, args=(errand,), daemon=True).start()
        return self.sent


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "store"))


def _config(store: Store, pool: str = "there", **explore: Any) -> Config:
    placement = {"store": store.uri, "pools": {"explore": pool}}
    return small_config(name="away", explore={"steps": 1, **explore}, placement=placement)


def _order(config: Config, store: Store, token: str) -> Order:
    runner = StageRunner(config, store, None)
    identity = runner._identity("explore", 0, runner.inputs.of("explore", 0))
    return Order(config.model_dump(mode="json"), fingerprint(identity), token)


def _errand(store: Store, config: Config | None = None, token: str = "t") -> Errand:
    errand = Errand.new(store, "away", "explore", 0)
    errand.lay(_order(config, store, token) if config else Order({}, "f", token))
    return errand


def test_an_errand_is_begun_once_and_not_when_nobody_wants_it(store: Store) -> None:
    errand = _errand(store)
    assert errand.take().fingerprint == "f"
    with pytest.raises(StageError, match="somebody has begun this already"):
        errand.take()
    errand.withdraw()
    with pytest.raises(StageError, match="nobody waits for this any more"):
        errand.take()
    assert store.list("away/errands") == []


def test_a_stage_sent_elsewhere_is_published_there_and_its_progress_seen_here(store: Store) -> None:
    config = _config(store)
    events: list[dict[str, Any]] = []
    with Lease(store, "away") as lease:
        pools = Pools(Sent(), lambda errand: carry_out(errand, lambda event: None))
        runner = StageRunner(config, store, lease, lambda *event: events.append(event[2]), _unused, pools)
        result = runner.ensure("explore", 0)
        assert not result.cached and not pools.sent.was_ended
        assert runner.ensure("explore", 0).cached
    assert [event["kind"] for event in events] == ["start", "step", "done", "cached"]
    assert store.list("away/errands") == [], "nothing of it is left"


def _unused(*job: Any, **settings: Any) -> Any:
    raise AssertionError("computed here")


def test_a_worker_that_would_compute_something_else_refuses_and_its_run_is_told_why(store: Store) -> None:
    config = _config(store)
    with Lease(store, "away") as lease:
        other = _order(_config(store, learning_rate=0.5), store, lease.token)
        wrong = Order(config.model_dump(mode="json"), other.fingerprint, lease.token)
        pools = Pools(Sent(), _refuse)
        errand = Errand.new(store, "away", "explore", 0)
        with pytest.raises(StageError, match=r"would compute something else.*\(fix: give it the same release"):
            follow(errand, wrong, pools, "there", lambda event: None, untaken_seconds=None, should_stop=lambda: False)
    assert not store.exists(manifest_key("away", 0, "explore"))


def _refuse(errand: Errand) -> None:
    with pytest.raises(StageError):
        carry_out(errand, lambda event: None)


def _follow(store: Store, pools: Pools, notes: list[str], untaken: float | None = None) -> None:
    follow(
        Errand.new(store, "away", "explore", 0), Order({}, "f", "t"), pools, "there",
        lambda event: notes.append(event["note"]), untaken_seconds=untaken, should_stop=lambda: False,
    )  # fmt: skip


def test_a_pool_without_a_worker_is_named_and_not_waited_for_in_vain(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(elsewhere, "UNTAKEN_SECONDS", 1.0)
    pools, notes = Pools(Sent()), list[str]()
    with pytest.raises(StageCrashed, match=r"no worker has taken it for 4 s \(placement.stage_stall_minutes\)"):
        _follow(store, pools, notes, untaken=4.0)
    start = "(start one: prefect worker start --pool there)"
    assert notes[:2] == [f"no worker of pool there has taken it for {seconds} s {start}" for seconds in (1, 2)]
    assert pools.sent.was_ended and store.list("away/errands") == []


def test_a_worker_that_falls_silent_or_ends_without_a_word_is_a_crash(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(elsewhere, "SILENT_SECONDS", 2.0)
    died = Pools(Sent(), lambda errand: errand.take())
    with pytest.raises(StageCrashed, match="no sign of life for 2 s"):
        _follow(store, died, [])
    assert died.sent.was_ended
    with pytest.raises(StageCrashed, match=r"ended without a result \(Crashed: exit code -9\)"):
        _follow(store, Pools(Sent("Crashed: exit code -9")), [])


def test_last_words_that_came_before_the_scheduler_noticed_count(store: Store) -> None:
    def work(errand: Errand) -> None:
        errand.take()
        errand.write(Report(1, [(0, {"kind": "note", "note": "hello"})], ended=True))

    notes: list[str] = []
    pools = Pools(Sent("Completed"), work)
    _follow(store, pools, notes)
    assert notes == ["hello"] and not pools.sent.was_ended


def test_kill_9_of_the_run_ends_its_stage_elsewhere_and_nothing_is_published(store: Store) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, store.uri], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )  # fmt: skip
    assert holder.stdout is not None
    errand = _errand(store, _config(store, steps=500), holder.stdout.readline().strip())
    with pytest.raises(NoLongerWanted, match="no longer wants it"):
        carry_out(errand, lambda event: holder.kill() if event["kind"] == "step" else None)
    holder.wait()
    assert not store.exists(manifest_key("away", 0, "explore"))


def test_a_borrowed_lease_is_worth_as_much_as_its_holder(store: Store) -> None:
    with Lease(store, "away", heartbeat=0.1) as lease:
        mine = BorrowedLease(store, "away", lease.token, patience=0.5)
        assert not mine.is_over()
        mine.ensure_held()
        another = BorrowedLease(store, "away", "another")
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
            StageRunner(config, Store(uri), None).check()


def test_garbage_collection_takes_the_errands_of_a_run_that_is_over(store: Store) -> None:
    write_run_record(store, _config(store))
    _errand(store)
    found = find_garbage(store, ["away"], older_than=-60)
    assert [item.why for one in found for item in one.items] == ["an errand of a run that is over"]
    delete_garbage(store, found, older_than=-60)
    assert store.list("away/errands") == []
