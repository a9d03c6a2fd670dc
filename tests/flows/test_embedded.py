"""The embedded Prefect API starts on a new home, and answers several requests at once."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.conftest import ROOT, prepared_home

pytestmark = pytest.mark.process

_BEGIN = """
import httpx
from flows.embedded import prefect_api

def client():
    from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL
    auth = tuple(PREFECT_API_AUTH_STRING.value().split(":"))
    return httpx.Client(auth=auth, base_url=PREFECT_API_URL.value(), timeout=240)

with prefect_api():
"""


def _run(script: str, home: Path) -> str:
    """Run a script inside the block of an embedded API with a home; return what it prints."""
    lines = [*_BEGIN.strip().splitlines(), *(f"    {line}" for line in script.strip().splitlines())]
    environment = {**os.environ, "PREFECT_HOME": str(home), "PREFECT_API_URL": ""}
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.long
@pytest.mark.timeout(400)
def test_several_commands_may_start_at_once_on_a_new_home(tmp_path: Path) -> None:
    with ThreadPoolExecutor(3) as threads:
        assert [*threads.map(lambda _: _run("print('up')", tmp_path), range(3))] == ["up"] * 3


_WRITE = """
from concurrent.futures import ThreadPoolExecutor
with client() as client, ThreadPoolExecutor(4) as pool:
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
    assert _run(_WRITE, prepared_home(tmp_path)) == "{201}"
