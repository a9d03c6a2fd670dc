"""Run a Prefect API for one command: a process on loopback that ends with the command, even on kill -9.

Every user of a machine reaches its loopback, so each API has a random password that only its two processes know.
Prefect's own temporary server has none and outlives a killed command.
"""

import gc
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flows.embedded_server import LOG
from rloop_core.errors import RESUMES, StageError

_SETTINGS = {
    "PREFECT_API_BLOCKS_REGISTER_ON_START": "false",  # nothing here uses blocks
    "PREFECT_API_DATABASE_MIGRATE_ON_START": "false",  # the process does it, before it serves
    "PREFECT_LOGGING_SERVER_LEVEL": "ERROR",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
}
_PATIENCE_SECONDS = 120.0

CONSOLE_LEVEL = "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL"
"""A setting of Prefect. Below CRITICAL, an error fills the screen with tracebacks of the engine before its one line."""


@contextmanager
def prefect_api() -> Iterator[None]:
    """Use the configured Prefect API (`PREFECT_API_URL` or a profile) in the block, or else an embedded one.

    Raises:
        StageError: The embedded one does not start.
    """
    os.environ.setdefault("PREFECT_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("PREFECT_LOGGING_INTERNAL_LEVEL", "CRITICAL")
    os.environ.setdefault(CONSOLE_LEVEL, "CRITICAL")
    if os.environ.get("PREFECT_API_URL"):
        yield
        return
    server = _Server()  # it starts while this process loads Prefect itself
    try:
        gc.disable()  # imports leave little garbage, but each collection would visit all modules
        import fastapi  # noqa: F401 - the client loads it at its first request
        import prefect.flow_engine
        import prefect.task_engine  # noqa: F401
        from prefect.logging.handlers import APILogHandler
        from prefect.settings import (
            PREFECT_API_AUTH_STRING,
            PREFECT_API_URL,
            PREFECT_CLIENT_MAX_RETRIES,
            PREFECT_FLOWS_HEARTBEAT_FREQUENCY,
            temporary_settings,
        )

        import flows.rloop  # noqa: F401
        from tasks.session import without_ui

        gc.enable()
        if PREFECT_API_URL.value():  # a profile names a server
            yield
            return
        log = check_home() / LOG
        # Nothing evaluates heartbeats here, and each flow would wait up to a second for its heartbeat thread.
        settings = {
            PREFECT_API_URL: server.address,
            PREFECT_API_AUTH_STRING: server.password,
            PREFECT_CLIENT_MAX_RETRIES: 3,  # a server that is gone for good ends the run within minutes
            PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None,
        }
        with without_ui(), temporary_settings(updates=settings):
            _wait_for(server, log)
            try:
                yield
            finally:
                APILogHandler().flush()  # later, without a server, the handler would log its failures
    finally:
        server.end()


class _Server:
    """The server's process; it may take seconds until it answers. If it is killed, another takes its place.

    It leads a session of its own, so that Ctrl-C does not reach it: the command still reports its end to it.
    """

    def __init__(self) -> None:
        self.password = f"rloop:{secrets.token_urlsafe(32)}"
        self._listener = socket.create_server(("127.0.0.1", 0))  # what is asked between two processes waits in here
        self._origin = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.address = f"{self._origin}/api"
        self._wanted = True
        self.process = self._start()
        threading.Thread(target=self._replace_killed, name="rloop-server", daemon=True).start()

    def _start(self) -> subprocess.Popen[bytes]:
        auth = {"PREFECT_SERVER_API_AUTH_STRING": self.password, "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": self._origin}
        descriptor = self._listener.fileno()
        return subprocess.Popen(
            [sys.executable, "-m", "flows.embedded_server", str(descriptor), str(os.getpid())],
            pass_fds=[descriptor],
            env={**os.environ, CONSOLE_LEVEL: "NOTSET", **_SETTINGS, **auth},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _replace_killed(self) -> None:
        while self.process.wait() == -signal.SIGKILL and self._wanted:
            self.process = self._start()
        self._listener.close()

    def end(self) -> None:
        """Close its standard input, which ends it, or kill it after 5 seconds."""
        self._wanted = False
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def check_home() -> Path:
    """Return Prefect's home if it takes a mebibyte; on a full disk its server does not start, or answers 500.

    Raises:
        StageError: It does not.
    """
    from prefect.settings import PREFECT_HOME

    home = Path(PREFECT_HOME.value())
    try:
        home.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=home) as probe:
            probe.write(bytes(1 << 20))
    except OSError as error:
        what = f"Prefect cannot write {home}: {error.strerror}"
        fix = f"free some space there, or set PREFECT_HOME to a folder that this user can write; {RESUMES}"
        raise StageError(what, field="PREFECT_HOME", fix=fix) from error
    return home


def _wait_for(server: _Server, log: Path) -> None:
    import httpx

    try:
        # The socket listens already: the first request waits until the server answers.
        httpx.get(f"{server.address}/health", timeout=_PATIENCE_SECONDS).raise_for_status()
    except httpx.HTTPError as error:
        check_home()
        code = server.process.poll()
        state = f"exit code {code}" if code is not None else f"no answer: {error}"
        fix = f"see {log}; move {log.parent} away if it is damaged, or set PREFECT_API_URL to a running server"
        raise StageError(f"the embedded Prefect does not start ({state})", field="prefect", fix=fix) from error
