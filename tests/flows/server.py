"""A real Prefect server with a password, on loopback, for as long as a test module runs."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from flows.empty_database import EmptyDatabase
from tests.conftest import ROOT

PASSWORD = "admin:not-a-secret"


@dataclass
class Server:
    """A running server.

    Args:
        api: Address of its API.
        folder: Everything that it and its workers write.
    """

    api: str
    folder: Path

    def environment(self, **more: str) -> dict[str, str]:
        """Of a client that may talk to it."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
        mine = {
            "PREFECT_API_URL": self.api,
            "PREFECT_API_AUTH_STRING": PASSWORD,
            "PREFECT_HOME": str(self.folder / "client"),
            "PREFECT_WORKER_QUERY_SECONDS": "1",
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "DO_NOT_TRACK": "1",
            "HF_HUB_OFFLINE": "1",
        }
        return clean | mine | more

    def call(self, *arguments: str, check: bool = True, **more: str) -> subprocess.CompletedProcess[str]:
        """`python -m ...` from the root of the clone."""
        done = subprocess.run(
            [sys.executable, "-m", *arguments],
            cwd=ROOT, env=self.environment(**more), capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert not check or done.returncode == 0, f"{arguments}\n{done.stdout}\n{done.stderr}"
        return done

    def post(self, path: str, content: Any) -> httpx.Response:
        """What the UI does."""
        return self._ask("POST", path, content)

    def patch(self, path: str, content: Any) -> None:
        """What the UI does."""
        self._ask("PATCH", path, content).raise_for_status()

    def get(self, path: str) -> Any:
        """The answer's JSON."""
        return self._ask("GET", path, None).raise_for_status().json()

    def _ask(self, method: str, path: str, content: Any) -> httpx.Response:
        user, word = PASSWORD.split(":")
        for _ in range(20):  # 503: SQLite is locked for a moment; Prefect's own clients ask again as well
            answer = httpx.request(method, f"{self.api}{path}", json=content, auth=(user, word), timeout=60)
            if answer.status_code != 503:
                break
            time.sleep(0.5)
        return answer

    @contextmanager
    def worker(self, pool: str) -> Iterator[None]:
        """A worker of a pool, started somewhere else than in the clone, as a service would be."""
        with _running(
            ["worker", "start", "--pool", pool, "--limit", "1"], self.folder / f"{pool}.log", self.environment()
        ):
            yield


@contextmanager
def prefect_server(folder: Path) -> Iterator[Server]:
    """Start one with a fresh database; gone, with its children, when the block ends."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    server = Server(f"http://127.0.0.1:{port}/api", folder)
    home = folder / "server"
    home.mkdir()
    EmptyDatabase(home).put()
    environment = server.environment(PREFECT_HOME=str(home), PREFECT_SERVER_API_AUTH_STRING=PASSWORD)
    del environment["PREFECT_API_URL"]
    with _running(
        ["server", "start", "--host", "127.0.0.1", "--port", str(port)], folder / "server.log", environment
    ) as process:
        deadline = time.monotonic() + 90
        while True:
            assert process.poll() is None and time.monotonic() < deadline, (folder / "server.log").read_text()[-3000:]
            try:
                if httpx.get(f"{server.api}/health", timeout=5).is_success:
                    break
            except httpx.HTTPError:
                time.sleep(0.2)
        yield server


@contextmanager
def _running(arguments: list[str], log: Path, environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    with open(log, "wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "prefect", *arguments],
            cwd=log.parent, env=environment, stdout=output, stderr=output, start_new_session=True,
        )  # fmt: skip
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
