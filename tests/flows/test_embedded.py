"""The embedded Prefect API starts on a new home, and answers several requests at once."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL

from tests.conftest import ROOT, embedded_prefect

pytestmark = pytest.mark.process


@pytest.mark.long
def test_several_commands_may_start_at_once_on_a_new_home(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from flows.embedded import prefect_api\nwith prefect_api(): print('up')"]
    environment = {**os.environ, "PREFECT_HOME": str(tmp_path), "PREFECT_API_URL": ""}

    def start(_: int) -> str:
        return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240).stdout

    with ThreadPoolExecutor(3) as threads:
        assert [*threads.map(start, range(3))] == ["up\n"] * 3


def test_an_answer_to_one_of_several_at_once_is_no_refusal() -> None:
    """Prefect's client asks again after 2 seconds and more, and 4 times at the most."""
    embedded_prefect()
    user, word = PREFECT_API_AUTH_STRING.value().split(":")
    with httpx.Client(auth=(user, word), base_url=PREFECT_API_URL.value(), timeout=240) as client:
        flow = client.post("/flows/", json={"name": "flow"}).json()["id"]
        run = client.post("/flow_runs/", json={"flow_id": flow}).json()["id"]

        def write(number: int) -> int:
            task = {"flow_run_id": run, "task_key": "task", "dynamic_key": str(number), "state": {"type": "PENDING"}}
            return client.post("/task_runs/", json=task).status_code

        with ThreadPoolExecutor(4) as threads:
            assert {*threads.map(write, range(80))} == {201}
