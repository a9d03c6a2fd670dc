"""A Prefect API for one command: started beside it on loopback, gone with it, even by kill -9.

Prefect's own temporary server outlives a killed command, and starts only after the command has loaded everything.
"""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flows.empty_database import EmptyDatabase
from rloop_core.errors import StageError
from tasks.audience import nobody_watching

_SETTINGS = {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_LOGGING_SERVER_LEVEL": "ERROR",
    "DO_NOT_TRACK": "1",
}
_PATIENCE_SECONDS = 120.0

CONSOLE_LEVEL = "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL"
"""Prefect's own setting; below CRITICAL, an error fills the screen with the engine's tracebacks before its one line."""


@contextmanager
def prefect_api() -> Iterator[None]:
    """The configured Prefect API (`PREFECT_API_URL` or a profile), or one of our own for as long as the block runs.

    Raises:
        StageError: Our own does not start.
    """
    os.environ.setdefault("PREFECT_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault(CONSOLE_LEVEL, "CRITICAL")
    from prefect.settings import PREFECT_API_URL, PREFECT_FLOWS_HEARTBEAT_FREQUENCY, PREFECT_HOME, temporary_settings

    if PREFECT_API_URL.value():
        yield
        return
    log = Path(PREFECT_HOME.value()) / "embedded.log"
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_bytes(b"")
    except OSError as error:
        fix = "set PREFECT_HOME to a folder that this user can write"
        raise StageError(f"cannot write its home: {error}", field="prefect", fix=fix) from error
    schema = EmptyDatabase(log.parent)
    schema.put()
    with socket.create_server(("127.0.0.1", 0)) as listener, open(log, "wb") as output:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}/api"
        server = subprocess.Popen(
            [sys.executable, "-m", "flows.embedded", str(listener.fileno()), str(os.getpid())],
            pass_fds=[listener.fileno()],
            env={**os.environ, CONSOLE_LEVEL: "NOTSET", **_SETTINGS},
            stdout=output,
            stderr=output,
        )
    try:
        # Nobody watches this API for heartbeats, and each flow would wait up to a second for its heartbeat thread.
        settings = {PREFECT_API_URL: address, PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}
        with nobody_watching(), temporary_settings(updates=settings):
            import flows.rloop  # noqa: F401 - loaded while the server starts

            _wait_for(server, address, log)
            schema.keep()
            try:
                yield
            finally:
                _send_logs()
    finally:
        server.terminate()
        try:
            server.wait(5)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _send_logs() -> None:
    """What was logged reaches the API while there is one; later attempts would fail with lines of their own."""
    from prefect.logging.handlers import APILogHandler

    APILogHandler().flush()


def _wait_for(server: subprocess.Popen[bytes], address: str, log: Path) -> None:
    import httpx

    try:
        # The listening socket exists already, so the first request simply waits for the first answer.
        httpx.get(f"{address}/health", timeout=_PATIENCE_SECONDS).raise_for_status()
    except httpx.HTTPError as error:
        state = f"exit code {server.poll()}" if server.poll() is not None else f"no answer: {error}"
        fix = f"see {log}; move {log.parent} away if it is damaged, or set PREFECT_API_URL to a running server"
        raise StageError(f"the embedded Prefect does not start ({state})", field="prefect", fix=fix) from error


def _serve(descriptor: int, parent: int) -> None:
    from rloop_core.lifelines import die_with_parent

    die_with_parent(parent)
    import uvicorn
    from prefect.server.api.server import create_app

    uvicorn.run(create_app(ephemeral=True, final=True), fd=descriptor, log_level="error", lifespan="on")


if __name__ == "__main__":
    _serve(int(sys.argv[1]), int(sys.argv[2]))
