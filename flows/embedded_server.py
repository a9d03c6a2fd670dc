"""The process of an embedded Prefect API: all that it takes to be ready soon, and nothing that nobody will ask of it.

Most of the start of a short command is spent here, in imports; so it is begun before the command itself knows Prefect.
"""

import contextlib
import gc
import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from rloop_core.imports import without_pandas
from rloop_core.runtime.lifetime import die_with_parent

LOG = "embedded.log"
"""What the server complains about, in Prefect's home."""


def _serve(descriptor: int, parent: int) -> None:
    die_with_parent(parent)
    gc.disable()  # until it serves: see `without_collections`
    from prefect.settings import PREFECT_API_URL, PREFECT_HOME, temporary_settings

    if PREFECT_API_URL.value():  # a profile names another server
        return
    _print_into(Path(PREFECT_HOME.value()) / LOG)
    with without_pandas():
        import uvicorn
        from prefect.server.api.server import create_app

    from flows.empty_database import EmptyDatabase

    schema = EmptyDatabase(Path(PREFECT_HOME.value()))
    schema.put()
    with temporary_settings(updates=_nothing_to_prepare() if schema.is_current() else {}):
        app = create_app(ephemeral=True, final=True)
        _before_serving(app, schema.keep)
        # Made from the descriptor, the socket knows that it is TCP's. uvicorn's own `fd` takes it for a Unix socket,
        # and then the second packet of an answer waits 40 ms for the client's acknowledgement (Nagle's algorithm).
        listener = socket.socket(fileno=descriptor)
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="on"))
        server.run(sockets=[listener])


def _nothing_to_prepare() -> dict[Any, bool]:
    """Settings for a database that a server of this version has prepared already."""
    from prefect.settings import PREFECT_API_BLOCKS_REGISTER_ON_START, PREFECT_API_DATABASE_MIGRATE_ON_START

    return {PREFECT_API_DATABASE_MIGRATE_ON_START: False, PREFECT_API_BLOCKS_REGISTER_ON_START: False}


def _before_serving(app: Any, do: Any) -> None:
    """Have something done once the server is ready, before it answers anybody."""
    inner = app.router.lifespan_context

    @asynccontextmanager
    async def lifespan(given: Any) -> AsyncIterator[Any]:
        async with inner(given) as state:
            do()
            gc.collect()
            gc.freeze()
            gc.enable()
            yield state

    app.router.lifespan_context = lifespan


def _print_into(log: Path) -> None:
    """Standard output and error go to the log from now on, which begins anew."""
    with contextlib.suppress(OSError):  # the command says what is wrong with its home
        log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "wb") as output:
        for standard in (1, 2):
            os.dup2(output.fileno(), standard)


if __name__ == "__main__":
    _serve(int(sys.argv[1]), int(sys.argv[2]))
