"""Start the flow from one command, with an embedded Prefect: no server to start, none left behind.

A Prefect API that is configured (`PREFECT_API_URL` or a profile) is used instead.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from rloop_core.config import Config
from rloop_core.errors import RLoopError, StageError
from tasks.session import Listener, watched_by

_EMBEDDED = {
    "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "true",
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_LOGGING_LEVEL": "ERROR",
    "PREFECT_LOGGING_SERVER_LEVEL": "ERROR",
    "DO_NOT_TRACK": "1",
}


def run_locally(config: Config, listener: Listener) -> None:
    """Run or resume the flow `rloop` in this process.

    Raises:
        RLoopError: The first stage that failed, as it failed.
    """
    for name, value in _EMBEDDED.items():
        os.environ.setdefault(name, value)
    from flows.rloop import rloop

    with _no_idle_heartbeats(), watched_by(listener):
        try:
            rloop(config)
        except RLoopError:
            raise
        except Exception as error:
            cause = _first_cause(error)
            if cause is not None:
                raise cause from error
            raise StageError(f"{type(error).__name__}: {error}", field="prefect") from error


@contextmanager
def _no_idle_heartbeats() -> Iterator[None]:
    """Without a server there is nobody to notice a heartbeat, and each flow would wait up to a second for its thread."""
    from prefect.settings import PREFECT_API_URL, PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

    if PREFECT_API_URL.value():
        yield
    else:
        with temporary_settings(updates={PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
            yield


def _first_cause(error: BaseException | None) -> RLoopError | None:
    while error is not None:
        if isinstance(error, RLoopError):
            return error
        error = error.__cause__ or error.__context__
    return None
