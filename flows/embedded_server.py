"""The process of an embedded Prefect API; `flows.embedded` starts it before it loads Prefect itself."""

import asyncio
import fcntl
import gc
import os
import signal
import socket
import sys
import threading
from contextlib import suppress
from pathlib import Path

from rloop_core.runtime.lifetime import die_with_parent

LOG = "embedded.log"
"""The server's errors, in Prefect's home."""


def _serve(descriptor: int, parent: int) -> None:
    """Serve on a listening socket until standard input is closed or the parent process ends."""
    die_with_parent(parent)
    threading.Thread(target=_end_with_input, daemon=True).start()
    gc.disable()  # imports leave little garbage, but each collection would visit all modules
    from prefect.settings import PREFECT_API_URL, PREFECT_HOME

    if PREFECT_API_URL.value():  # a profile names another server
        return
    home = Path(PREFECT_HOME.value())
    _redirect_output(home / LOG)
    import uvicorn
    from prefect.server.api.server import create_app
    from prefect.server.database import provide_database_interface

    lock_at_once()
    with open(home / "rloop-upgrade.lock", "wb") as lock:  # several commands may start at once on a new home
        fcntl.flock(lock, fcntl.LOCK_EX)
        asyncio.run(provide_database_interface().create_db())
    app = create_app(ephemeral=True, final=True)
    gc.freeze()
    gc.enable()
    # A socket made from the descriptor knows that it is TCP. uvicorn's own `fd` takes it for a Unix socket, and then
    # the second packet of an answer waits 40 ms for the client's acknowledgement (Nagle's algorithm).
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="on"))
    server.run(sockets=[socket.socket(fileno=descriptor)])


def lock_at_once() -> None:
    """Have the transactions of Prefect's server on SQLite lock the database when they begin.

    One that reads first and writes then is refused where another one has written meanwhile, and the client asks again
    after 2 seconds: once or twice a run. One that locks at once waits for milliseconds.
    """
    from prefect.server.database.configurations import AioSqliteConfiguration

    begin = AioSqliteConfiguration.begin_transaction
    AioSqliteConfiguration.begin_transaction = lambda self, session, **_: begin(self, session, with_for_update=True)  # type: ignore[method-assign]


def _end_with_input() -> None:
    sys.stdin.buffer.read()
    os.kill(os.getpid(), signal.SIGTERM)


def _redirect_output(log: Path) -> None:
    """Redirect standard output and error to a new log."""
    with suppress(OSError):  # the command reports what is wrong with its home
        log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "wb") as output:
        for descriptor in (1, 2):
            os.dup2(output.fileno(), descriptor)


if __name__ == "__main__":
    _serve(int(sys.argv[1]), int(sys.argv[2]))
