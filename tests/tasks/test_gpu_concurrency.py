"""Which stages need a concurrency slot, and waiting for one; tests/flows hold slots of a real server."""

from __future__ import annotations

import json
import threading
import time
import uuid
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from rloop_core.errors import StageError
from tasks import gpu_concurrency
from tasks.gpu_concurrency import GPU_LIMIT, concurrency_slot, limit_of
from tests.conftest import small_config

STAGES = ("explore", "harvest", "filter", "rft", "evaluate", "preflight")


def test_what_computes_on_a_gpu_needs_a_slot_and_a_run_on_the_cpu_none(monkeypatch: pytest.MonkeyPatch) -> None:
    on_cpu, anywhere = small_config(), small_config(placement={"device": "auto"})
    on_gpu = small_config(placement={"device": "cuda"})
    sampling = small_config(
        placement={"device": "cuda"}, harvest={"snapshot_samples": 2}, explore={"snapshot_every": 1}
    )
    assert {limit_of(on_cpu, stage) for stage in STAGES} == {None}
    assert [stage for stage in STAGES if limit_of(on_gpu, stage)] == ["explore", "rft", "evaluate"]
    assert limit_of(sampling, "harvest") == limit_of(on_gpu, "rft") == GPU_LIMIT
    for there in (True, False):
        monkeypatch.setattr(gpu_concurrency, "_has_gpu", lambda there=there: there)
        assert (limit_of(anywhere, "explore") == GPU_LIMIT) is there
    assert limit_of(small_config(placement={"concurrency_limit": "half-a-node"}), "explore") == "half-a-node"


@pytest.mark.process
def test_who_waits_can_be_told_to_stop_even_while_the_server_is_away(tmp_path: Path) -> None:
    notes: list[str] = []
    began = time.monotonic()
    with (
        temporary_settings(updates={PREFECT_API_URL: "http://127.0.0.1:9/api"}),
        pytest.raises(StageError, match="was stopped before it had a slot"),
        concurrency_slot("rloop-gpu", "demo: explore 0", notes.append, lambda: time.monotonic() - began > 1),
    ):
        raise AssertionError("it has no slot")
    assert len(notes) == 1 and "does not answer" in notes[0]


@pytest.mark.process
def test_each_reason_to_wait_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([500, 500, 423, 500, 423])
    monkeypatch.setattr(gpu_concurrency, "_ASK_SECONDS", 0.0)
    notes: list[str] = []

    class Busy(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self._answer(next(answers, 200) if self.path.endswith("increment-with-lease") else 200)

        def do_GET(self) -> None:
            self._answer(404)

        def _answer(self, code: int) -> None:
            content = json.dumps({"lease_id": str(uuid.uuid4()), "limits": []}).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Busy) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        with (
            temporary_settings(updates={PREFECT_API_URL: f"http://127.0.0.1:{server.server_port}/api"}),
            concurrency_slot("another", "demo: explore 0", notes.append),
        ):
            assert next(answers, None) is None
        server.shutdown()
    # Prefect keeps one client a limit, whatever server is asked: another test's limit would ask another test's server.
    waiting = "waiting for a slot of the concurrency limit another: "
    assert notes[:2] == [f"{waiting}the Prefect server answers 500", f"{waiting}other stages hold them all"]
    assert len(notes) == 3 and notes[2].startswith("has a slot of another after ")
