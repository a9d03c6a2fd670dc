"""`rloop deploy` when answers are lost: no automation is created twice, and a stopped server is reported."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import httpx
import psutil
import pytest

from tests.flows.server import Server, prefect_server

pytestmark = pytest.mark.long
AUTOMATION = ("POST", "/api/automations/")


class Proxy(ThreadingHTTPServer):
    """A proxy of a server: `lose` times it forwards the creation of an automation and closes the connection unanswered.

    With `stop` set, it halts the process with that id at that moment."""

    daemon_threads = True

    def __init__(self, server: Server) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.behind = server.api.removesuffix("/api")
        self.url = f"http://127.0.0.1:{self.server_port}/api"
        self.lose = 0
        self.stop: int | None = None
        self.seen: Counter[tuple[str, str]] = Counter()


class _Handler(BaseHTTPRequestHandler):
    server: Proxy

    def _pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        headers = {name: value for name, value in self.headers.items() if name.lower() not in ("host", "connection")}
        asked = self.command, self.path
        try:
            answer = httpx.request(
                self.command, self.server.behind + self.path, content=body, headers=headers, timeout=60
            )
        except httpx.TransportError:
            self.close_connection = True
            return
        self.server.seen[asked] += 1
        if asked == AUTOMATION and self.server.stop:
            os.kill(self.server.stop, signal.SIGSTOP)
            self.rfile.read(1)  # until the client gives up
        if asked == AUTOMATION and self.server.lose:
            self.server.lose -= 1
            self.close_connection = True
            return
        self.send_response(answer.status_code)
        self.send_header("Content-Type", answer.headers.get("Content-Type", "application/json"))
        self.send_header("Content-Length", str(len(answer.content)))
        self.end_headers()
        self.wfile.write(answer.content)

    do_GET = do_POST = do_PUT = do_PATCH = _pass_on  # noqa: N815 - as http.server names them

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


@contextmanager
def _proxy(server: Server) -> Iterator[Proxy]:
    with Proxy(server) as proxy:
        Thread(target=proxy.serve_forever, args=(0.05,), daemon=True).start()
        try:
            yield proxy
        finally:
            proxy.shutdown()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with prefect_server(tmp_path_factory.mktemp("prefect")) as server:
        yield server


@pytest.fixture
def server(running: Server) -> Server:
    """A server without automations."""
    for one in running.post("/automations/filter", {}).json():
        running.answer("DELETE", f"/automations/{one['id']}", None)
    return running


def _names(server: Server) -> Counter[str]:
    return Counter(one["name"] for one in server.post("/automations/filter", {}).json())


def test_an_automation_whose_answer_was_lost_is_not_made_again(server: Server) -> None:
    with _proxy(server) as proxy:
        proxy.lose = 2
        done = server.deploy("--json", "--api", proxy.url)
        assert proxy.lose == 0
        made = {one["name"] for one in json.loads(done.stdout)["changes"] if one["kind"] == "automation"}
    assert _names(server) == dict.fromkeys(made, 1) and proxy.seen[AUTOMATION] == len(made)
    assert server.deploy().stdout.strip().endswith("nothing to change: the server has it all")


def test_a_server_that_stops_answering_is_named_with_what_to_do_and_the_same_command_goes_on(server: Server) -> None:
    with _proxy(server) as proxy:
        (number,) = (one.pid for one in psutil.process_iter(["cmdline"]) if _serves(one, server))
        proxy.stop = number
        hung = server.call("rloop_core", "deploy", "--api", proxy.url, check=False, PREFECT_API_REQUEST_TIMEOUT="12")
        psutil.Process(number).resume()
    assert hung.returncode == 2 and "Traceback" not in hung.stderr
    assert "stopped answering while it made the automation 'rloop: " in hung.stderr
    assert "start it again and give the same command again" in hung.stderr
    assert sum(_names(server).values()) == 1
    assert server.deploy().returncode == 0
    assert set(_names(server).values()) == {1} and len(_names(server)) == 4


def _serves(process: psutil.Process, server: Server) -> bool:
    return server.api.split(":")[2].removesuffix("/api") in (process.info["cmdline"] or [])
