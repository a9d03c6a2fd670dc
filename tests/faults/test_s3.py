"""The smoke run with its store on S3, and everything between them failing: the undisturbed digests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing import forkserver
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from rloop_core.config import load_config
from rloop_core.errors import StoreError
from rloop_core.stages.inputs import stages_of
from rloop_core.stages.runner import StageRunner
from rloop_core.store import Lease, Store, manifest_key
from tests.conftest import ROOT, SMOKE, command_environment
from tests.disks import small_disk
from tests.faults.conftest import SMOKE_RUN, wait_until
from tests.store.faulty_s3 import ALL_FAULTS, FaultyS3

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]
GONE_SECONDS = float(os.environ.get("RLOOP_TEST_STORE_GONE_SECONDS", 4))
"""For which the server is away in the middle of the run."""


@dataclass(frozen=True)
class Finished:
    """A run that got through."""

    uri: str
    """Of its store."""
    said: str
    """By the command."""
    proxy: FaultyS3
    """What it went through."""


@pytest.fixture(scope="module")
def finished(s3_server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Finished]:
    """The smoke run, while one request in ten fails and the server goes away."""
    folder = tmp_path_factory.mktemp("s3")
    address = urlsplit(os.environ["AWS_ENDPOINT_URL"])
    proxy = FaultyS3(str(address.hostname), int(address.port or 0), seed=3)
    proxy.rate, proxy.faults, proxy.stale = 0.1, ALL_FAULTS, 0.5
    uri, log = f"{s3_server}/faults", folder / "log.txt"
    environment = command_environment(folder / "home") | {"AWS_ENDPOINT_URL": proxy.url}
    command = [*SMOKE_RUN, "--store", uri, "--set", f"placement.scratch={folder / 'scratch'}"]
    with open(log, "wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "rloop_core", *command], cwd=ROOT, env=environment, stdout=output, stderr=output
        )
    try:
        wait_until(lambda: "harvest 0: started" in _alive(process, log), "the middle of the run", 300, 0.05)
        proxy.gone.set()
        wait_until(lambda: "does not answer" in _alive(process, log), "the run to notice", 120, 0.05)
        time.sleep(GONE_SECONDS)
        proxy.gone.clear()
        assert process.wait(600) == 0, log.read_text()
        yield Finished(uri, log.read_text(), proxy)
    finally:
        process.kill()
        process.wait()
        proxy.stop()


@pytest.fixture
def store(finished: Finished) -> Store:
    """The finished run's store, without the proxy."""
    forkserver._forkserver._stop()  # type: ignore[attr-defined] # one that another test started has no credentials
    return Store(finished.uri)


def test_one_request_in_ten_fails_the_server_goes_away_and_nothing_is_lost(
    finished: Finished, store: Store, undisturbed: dict[str, str]
) -> None:
    assert digests(store) == undisturbed
    assert "the store answers again" in finished.said
    seen = finished.proxy.seen
    assert all(seen[fault] >= 2 for fault in ALL_FAULTS), seen
    requests = sum(seen[method] for method in ("GET", "HEAD", "PUT", "POST", "DELETE"))
    assert sum(seen[fault] for fault in ALL_FAULTS) > 0.05 * requests, seen


def test_a_full_disk_for_the_copies_stops_a_run_and_costs_it_nothing(
    finished: Finished, store: Store, undisturbed: dict[str, str], tmp_path: Path
) -> None:
    scratch = tmp_path / "scratch"
    config = load_config(SMOKE, [f"placement.scratch={scratch}"])
    with small_disk(scratch / "cache", "16k") as grow, Lease(store, config.name) as lease:
        runner = StageRunner(config, store, lease)
        with pytest.raises(StoreError, match="No space left"):
            for iteration, stage in stages_of(config):
                runner.ensure(stage, iteration)
        assert digests(store) == undisturbed
        grow("3m")  # for one policy
        store.delete(manifest_key(config.name, 1, "rft"))
        done = {(iteration, stage): runner.ensure(stage, iteration).cached for iteration, stage in stages_of(config)}
        assert [place for place, cached in done.items() if not cached] == [(1, "rft")]
        held = sum(path.stat().st_size for path in (scratch / "cache").rglob("*") if path.is_file())
    assert digests(store) == undisturbed
    assert held < sum(entry.bytes for entry in store.entries(config.name)), "some copies had to go"


def digests(store: Store) -> dict[str, str]:
    """Digest of every artifact of the smoke run, by its place."""
    keys = [key for key in store.list("smoke") if key.endswith("/manifest.json")]
    return {
        key.removeprefix("smoke/").removesuffix("/manifest.json"): json.loads(store.read_bytes(key))["digest"]
        for key in keys
    }


def _alive(process: subprocess.Popen[bytes], log: Path) -> str:
    """What a command has said so far."""
    assert process.poll() is None, log.read_text()
    return log.read_text()
