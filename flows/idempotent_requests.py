"""Changes that a Prefect server must not be sent twice, and a server that answers none of them any more.

Prefect's client repeats a request that got no answer. A repeated "create an automation" leaves two of one name, and
both act.
"""

from collections.abc import Callable

import httpx
from prefect.client.orchestration import SyncPrefectClient
from prefect.exceptions import PrefectHTTPStatusError
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings

from rloop_core.errors import ConfigError

_TIMES = 5
_BUSY = (408, 429, 502, 503)
_FIX = (
    "end the server (kill -9), start it again and give the same command again; Prefect before 3.8.6 can lock itself "
    "up so on SQLite (PrefectHQ/prefect issue 23055), on Postgres it does not"
)


def send_once(client: SyncPrefectClient, what: str, send: Callable[[], object], done: Callable[[], bool]) -> None:
    """Send a change; where no answer came, see whether it was made before it is sent again.

    Args:
        client: Of the server.
        what: What is changed, in words.
        send: Sends the change.
        done: Whether the server has it.

    Raises:
        ConfigError: The server has stopped answering.
    """
    for attempt in range(1, _TIMES + 1):
        try:
            with temporary_settings(updates={PREFECT_CLIENT_MAX_RETRIES: 0}):
                send()
            return
        except (httpx.TransportError, PrefectHTTPStatusError) as error:
            refused = isinstance(error, PrefectHTTPStatusError) and error.response.status_code not in _BUSY
            if refused or attempt == _TIMES:
                raise
        if _is_done(client, what, done):
            return


def _is_done(client: SyncPrefectClient, what: str, done: Callable[[], bool]) -> bool:
    with temporary_settings(updates={PREFECT_CLIENT_MAX_RETRIES: 0}):
        trouble = client.api_healthcheck()
    try:
        if isinstance(trouble, httpx.TimeoutException):
            raise trouble
        with temporary_settings(updates={PREFECT_CLIENT_MAX_RETRIES: 2}):
            return done()
    except httpx.TimeoutException as error:
        raise ConfigError(f"the server stopped answering while it made {what}", field="--api", fix=_FIX) from error
