"""The process of an embedded Prefect API, made to start fast.

Imports take most of a short command's start, so `flows.embedded` starts this process before it loads Prefect itself.
"""

import contextlib
import gc
import os
import shutil
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from rloop_core.imports import without_pandas
from rloop_core.runtime.lifetime import die_with_parent

LOG = "embedded.log"
"""The server's errors, in Prefect's home."""
_CONNECTION = "PREFECT_API_DATABASE_CONNECTION_URL"


class EmptyDatabase:
    """The migrated, empty database of one Prefect version, kept in the user's cache.

    Migrations take about 5 seconds, which every command with a fresh Prefect home would wait for.

    Args:
        home: Prefect's home, with the database in use.
    """

    def __init__(self, home: Path) -> None:
        from importlib.metadata import version

        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        self._kept = cache / "rloop" / f"prefect-{version('prefect')}.db"
        self._used = home / "prefect.db"
        self._is_new = not self._used.exists() and _CONNECTION not in os.environ

    def put(self) -> None:
        """Copy the kept database into a home that has none."""
        if self._is_new and self._kept.is_file():
            copy = self._used.with_suffix(f".{os.getpid()}")  # on a full disk, half a database must not stay
            try:
                shutil.copyfile(self._kept, copy)
                copy.replace(self._used)
                self._is_new = False
            except OSError:
                copy.unlink(missing_ok=True)

    def is_current(self) -> bool:
        """Return True if the database in use has the schema of the kept one, so that no migration is due."""
        if _CONNECTION in os.environ or not self._used.is_file() or not self._kept.is_file():
            return False
        return _revision(self._used) == _revision(self._kept) is not None

    def keep(self) -> None:
        """Keep the database that a server has just created, before any run uses it. Failing is no error."""
        import sqlite3
        import tempfile

        if not self._is_new or not self._used.is_file():
            return
        with contextlib.suppress(OSError, sqlite3.Error):
            self._kept.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self._kept.parent, prefix=".tmp-")
            os.close(handle)
            source, target = sqlite3.connect(self._used), sqlite3.connect(name)
            try:
                with contextlib.closing(source), contextlib.closing(target):
                    source.backup(target)
                Path(name).replace(self._kept)
            finally:
                Path(name).unlink(missing_ok=True)


def _revision(database: Path) -> str | None:
    """Return a database's last migration; None if it cannot be read."""
    import sqlite3

    with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(database, timeout=1)) as connection:
        rows = connection.execute("select version_num from alembic_version").fetchall()
        return ",".join(sorted(name for (name,) in rows)) or None
    return None


def _serve(descriptor: int, parent: int) -> None:
    """Serve on a listening socket until standard input is closed or the parent process ends."""
    die_with_parent(parent)
    threading.Thread(target=_end_with_input, daemon=True).start()
    gc.disable()  # until it serves: see `without_collections`
    from prefect.settings import (
        PREFECT_API_BLOCKS_REGISTER_ON_START,
        PREFECT_API_DATABASE_MIGRATE_ON_START,
        PREFECT_API_URL,
        PREFECT_HOME,
        temporary_settings,
    )

    if PREFECT_API_URL.value():  # a profile names another server
        return
    home = Path(PREFECT_HOME.value())
    _redirect_output(home / LOG)
    with without_pandas():
        import uvicorn
        from prefect.server.api.server import create_app

    lock_at_once()
    database = EmptyDatabase(home)
    database.put()
    # A current database needs neither migrations nor blocks.
    prepared = {PREFECT_API_DATABASE_MIGRATE_ON_START: False, PREFECT_API_BLOCKS_REGISTER_ON_START: False}
    with temporary_settings(updates=prepared if database.is_current() else {}):
        app = create_app(ephemeral=True, final=True)
        _call_before_serving(app, database.keep)
        # A socket made from the descriptor knows that it is TCP. uvicorn's own `fd` takes it for a Unix socket, and
        # then the second packet of an answer waits 40 ms for the client's acknowledgement (Nagle's algorithm).
        listener = socket.socket(fileno=descriptor)
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="on"))
        server.run(sockets=[listener])


def lock_at_once() -> None:
    """Have the transactions of Prefect's server on SQLite lock the database when they begin.

    One that reads first and writes then is refused where another one has written meanwhile, and the client asks again
    after 2 seconds: once or twice a run. One that locks at once waits for milliseconds.
    """
    from prefect.server.database.configurations import AioSqliteConfiguration

    begin = AioSqliteConfiguration.begin_transaction
    AioSqliteConfiguration.begin_transaction = lambda self, session, **_: begin(self, session, with_for_update=True)  # type: ignore[method-assign]


def _end_with_input() -> None:
    """Send this process the SIGTERM that its other threads block, once standard input is closed."""
    sys.stdin.buffer.read()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    signal.raise_signal(signal.SIGTERM)


def _call_before_serving(app: Any, function: Callable[[], None]) -> None:
    """Call a function once the server is ready, before it answers."""
    inner = app.router.lifespan_context

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[Any]:
        async with inner(app) as state:
            function()
            gc.collect()
            gc.freeze()
            gc.enable()
            yield state

    app.router.lifespan_context = lifespan


def _redirect_output(log: Path) -> None:
    """Redirect standard output and error to a new log."""
    with contextlib.suppress(OSError):  # the command reports what is wrong with its home
        log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "wb") as output:
        for descriptor in (1, 2):
            os.dup2(output.fileno(), descriptor)


if __name__ == "__main__":
    _serve(int(sys.argv[1]), int(sys.argv[2]))
