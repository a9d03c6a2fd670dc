"""The embedded Prefect API starts and answers fast; its database is prepared once by each version of Prefect."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from flows.embedded_server import EmptyDatabase
from tests.conftest import ROOT, command_environment
from tests.disks import small_disk

pytestmark = pytest.mark.process

_ASK = """
import sys, time, httpx
from flows.embedded import early_server, prefect_api
with early_server() as server, prefect_api(server):
    from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL
    with httpx.Client(auth=tuple(PREFECT_API_AUTH_STRING.value().split(":"))) as client:
        seconds = []
        for _ in range(30):
            began = time.monotonic()
            client.get(f"{PREFECT_API_URL.value()}/admin/version").raise_for_status()
            seconds.append(time.monotonic() - began)
print(min(seconds), "pandas" in sys.modules)
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prefect's home after the first embedded API of a machine, with what it printed."""
    folder = tmp_path_factory.mktemp("embedded")
    environment = command_environment(folder) | {"XDG_CACHE_HOME": str(folder / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", _ASK], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (folder / "printed").write_text(done.stdout)
    return folder


@pytest.mark.long
def test_an_answer_does_not_wait_for_the_acknowledgement_of_its_first_packet(home: Path) -> None:
    quickest, pandas = (home / "printed").read_text().split()
    assert float(quickest) < 0.035, "each answer of a socket with Nagle's algorithm takes 40 ms"
    assert pandas == "False"


@pytest.mark.long
def test_a_database_of_this_version_is_prepared_and_any_other_is_not(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "cache"))
    assert EmptyDatabase(home).is_current()
    assert not EmptyDatabase(tmp_path).is_current()
    copy = tmp_path / "prefect.db"
    EmptyDatabase(tmp_path).put()
    assert EmptyDatabase(tmp_path).is_current()
    with sqlite3.connect(copy) as opened:
        opened.execute("update alembic_version set version_num = 'an earlier one'")
    opened.close()
    assert not EmptyDatabase(tmp_path).is_current()
    copy.write_bytes(b"no database")
    assert not EmptyDatabase(tmp_path).is_current()


_WRITE = """
import httpx
from concurrent.futures import ThreadPoolExecutor
from flows.embedded import early_server, prefect_api
with early_server() as server, prefect_api(server):
    from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL
    place = {"auth": tuple(PREFECT_API_AUTH_STRING.value().split(":")), "base_url": PREFECT_API_URL.value()}
    with httpx.Client(**place, timeout=240) as client, ThreadPoolExecutor(4) as pool:
        flow = client.post("/flows/", json={"name": "flow"}).json()["id"]
        run = client.post("/flow_runs/", json={"flow_id": flow}).json()["id"]
        state = {"type": "PENDING"}
        def write(number):
            task = {"flow_run_id": run, "task_key": "task", "dynamic_key": str(number), "state": state}
            return client.post("/task_runs/", json=task).status_code
        print({*pool.map(write, range(80))})
"""


def test_an_answer_to_one_of_several_at_once_is_no_refusal(tmp_path: Path) -> None:
    """Prefect's client asks again after 2 seconds and more, and 4 times at the most."""
    done = subprocess.run(
        [sys.executable, "-c", _WRITE], cwd=ROOT, env=command_environment(tmp_path), capture_output=True, text=True,
        timeout=240, check=False,
    )  # fmt: skip
    assert done.stdout.strip() == "{201}", done.stderr


def test_a_server_begun_for_nothing_is_ended_at_once(tmp_path: Path) -> None:
    script = "from flows.embedded import early_server\nwith early_server() as server:\n    print(server.process.pid)"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, env=command_environment(tmp_path), capture_output=True, text=True,
        timeout=60, check=True,
    )  # fmt: skip
    assert not Path(f"/proc/{int(done.stdout)}").exists()


def test_a_full_disk_keeps_no_half_of_a_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    kept = tmp_path / "rloop" / f"prefect-{version('prefect')}.db"
    kept.parent.mkdir()
    kept.write_bytes(bytes(1 << 20))
    with small_disk(tmp_path / "home", "64k") as grow:
        EmptyDatabase(tmp_path / "home").put()
        assert not any((tmp_path / "home").iterdir())
        grow("4m")
        EmptyDatabase(tmp_path / "home").put()
        assert (tmp_path / "home/prefect.db").read_bytes() == kept.read_bytes()
