"""Send what the UI shows from a separate thread: a slow or missing server delays no stage."""

import threading
import time
from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from typing import Any, Protocol

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.exceptions import PrefectHTTPStatusError
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings

_UPDATE_SECONDS = 1.0
_REQUEST_SECONDS = 15.0
_RETRY_SECONDS = 5.0
_TRIES = 6
Send = Callable[[SyncPrefectClient], Any]


class Updated(Protocol):
    """An object that is updated once a second, named by its `str`."""

    def update(self, client: SyncPrefectClient) -> None:
        """Send what is new. An error is logged, and the next update tries again."""


class UIPublisher:
    """A thread that talks to the Prefect API for the stages of a run.

    Args:
        warn: Called with one line about what could not be shown.
    """

    def __init__(self, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._jobs: deque[tuple[str, Send]] = deque()
        self._updated: list[Updated] = []
        self._wake = threading.Event()
        self._closing = False
        self._warned = False
        context = copy_context()  # with the caller's settings, temporary ones too
        self._thread = threading.Thread(target=context.run, args=(self._work,), name="rloop-ui", daemon=True)
        self._thread.start()

    def submit(self, what: str, send: Send) -> None:
        """Queue something to send; a server that does not answer is asked several times.

        Args:
            what: Its name, for the warning if it cannot be shown.
            send: Makes and sends it; called in the publisher's thread.
        """
        self._jobs.append((what, send))
        self._wake.set()

    def add(self, updated: Updated) -> None:
        """Update an object once a second from now on."""
        self._updated.append(updated)
        self._wake.set()

    def remove(self, updated: Updated) -> None:
        """Update an object a last time."""
        self._updated.remove(updated)
        self.submit(str(updated), updated.update)

    def close(self, timeout: float) -> None:
        """Send what is left, for so many seconds at most."""
        self._closing = True
        self._wake.set()
        self._thread.join(timeout)

    def _work(self) -> None:
        with (
            temporary_settings(updates={PREFECT_CLIENT_MAX_RETRIES: 1}),
            # A client with settings of its own is not shared with the run, which closes its client when it ends.
            get_client(sync_client=True, httpx_settings={"timeout": _REQUEST_SECONDS}) as client,
        ):
            while not self._closing or self._jobs:
                self._wake.wait(_UPDATE_SECONDS)
                self._wake.clear()
                self._send_jobs(client)
                for updated in tuple(self._updated):
                    self._try(str(updated), updated.update, client)

    def _send_jobs(self, client: SyncPrefectClient) -> None:
        while self._jobs:
            what, send = self._jobs[0]
            for tries_left in reversed(range(_TRIES)):
                if not self._try(what, send, client, retry=tries_left > 0):
                    break
                time.sleep(_RETRY_SECONDS)
            self._jobs.popleft()

    def _try(self, what: str, send: Send, client: SyncPrefectClient, retry: bool = False) -> bool:
        """Return True if it must be sent again. Only the first failure of the run is logged."""
        try:
            send(client)
        except Exception as error:  # an error in the UI must not end a stage
            if retry and isinstance(error, httpx.TransportError | PrefectHTTPStatusError):
                return True
            if not self._warned:
                self._warned = True
                self._warn(f"{what} could not be shown: {type(error).__name__}: {error}")
        return False
