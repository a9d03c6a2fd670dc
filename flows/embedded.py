"""Run a Prefect API for one command: a process on loopback that ends with the command, even on kill -9.

Every user of a machine reaches its loopback, so each API has a random password that only its two processes know.
Prefect's own temporary server outlives a killed command, and starts only after the command has loaded everything.
"""

import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from flows.embedded_server import LOG
from rloop_core.errors import RESUMES, StageError
from rloop_core.imports import without_collections, without_pandas

_SETTINGS = {"PREFECT_SERVER_ANALYTICS_ENABLED": "false", "PREFECT_LOGGING_SERVER_LEVEL": "ERROR", "DO_NOT_TRACK": "1"}
_PATIENCE_SECONDS = 120.0
_MOST_STARTS = 10

CONSOLE_LEVEL = "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL"
"""A setting of Prefect. Below CRITICAL, an error fills the screen with tracebacks of the engine before its one line."""


class _Server:
    """The server's process; it may take seconds until it answers. If it is killed, another takes its place.

    SIGINT and SIGTERM for the process group of the command do not end it: the command still reports its end to it.
    """

    def __init__(self) -> None:
        self.password = f"rloop:{secrets.token_urlsafe(32)}"
        self._listener = socket.create_server(("127.0.0.1", 0))  # what is asked between two servers waits in here
        self._origin = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.address = f"{self._origin}/api"
        self._wanted = True
        self.process = self._start()
        threading.Thread(target=self._replace_killed, name="rloop-server", daemon=True).start()

    def _start(self) -> subprocess.Popen[bytes]:
        auth = {"PREFECT_SERVER_API_AUTH_STRING": self.password, "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": self._origin}
        descriptor = self._listener.fileno()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        try:
            return subprocess.Popen(
                [sys.executable, "-m", "flows.embedded_server", str(descriptor), str(os.getpid())],
                pass_fds=[descriptor],
                env={**os.environ, CONSOLE_LEVEL: "NOTSET", **_SETTINGS, **auth},
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _replace_killed(self) -> None:
        for _ in range(_MOST_STARTS):
            if self.process.wait() >= 0 or not self._wanted:
                break
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


@contextmanager
def early_server() -> Iterator[_Server | None]:
    """Start an embedded API before it is known whether it is needed, and end it with the block.

    It starts while this process loads its own modules. Yields None if the environment has an API address; the process
    ends by itself if a Prefect profile has one.
    """
    _quiet()
    if os.environ.get("PREFECT_API_URL") or "prefect" in sys.modules:
        yield None
        return
    server = _Server()
    try:
        yield server
    finally:
        server.end()


@contextmanager
def prefect_api(early: _Server | None = None) -> Iterator[None]:
    """Use the configured Prefect API (`PREFECT_API_URL` or a profile) in the block, or else an embedded one.

    Args:
        early: The embedded one, if it is started already.

    Raises:
        StageError: The embedded one does not start.
    """
    _quiet()
    with nullcontext(early) if early else early_server() as server:
        with without_pandas(), without_collections():
            from prefect.settings import (
                PREFECT_API_AUTH_STRING,
                PREFECT_API_URL,
                PREFECT_CLIENT_MAX_RETRIES,
                PREFECT_FLOWS_HEARTBEAT_FREQUENCY,
                temporary_settings,
            )

            from tasks.session import without_ui

        if PREFECT_API_URL.value():
            yield
            return
        log = check_home() / LOG
        server = server or _Server()
        try:
            # Nothing evaluates heartbeats here, and each flow would wait up to a second for its heartbeat thread.
            settings = {
                PREFECT_API_URL: server.address,
                PREFECT_API_AUTH_STRING: server.password,
                PREFECT_CLIENT_MAX_RETRIES: 3,  # a server that is gone for good ends the run within minutes
                PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None,
            }
            with without_ui(), temporary_settings(updates=settings):
                _load_flows()
                _wait_for(server, log)
                try:
                    yield
                finally:
                    _send_logs()
        finally:
            server.end()


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


def _quiet() -> None:
    """Keep Prefect's log lines off the console unless the environment says otherwise."""
    os.environ.setdefault("PREFECT_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault(CONSOLE_LEVEL, "CRITICAL")


def _load_flows() -> None:
    """Load what the first flow needs while the server starts."""
    with without_pandas(), without_collections():
        import fastapi  # noqa: F401 - the client loads it at its first request
        import prefect.flow_engine
        import prefect.task_engine  # noqa: F401

        import flows.rloop  # noqa: F401


def _send_logs() -> None:
    """Send the log records while there is an API: the handler would log its failures later."""
    from prefect.logging.handlers import APILogHandler

    APILogHandler().flush()


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
