"""What the UI shows is sent from here, beside the stages: a server that is slow or gone delays none of them."""

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

_TICK_SECONDS = 1.0
_REQUEST_SECONDS = 15.0
_AGAIN_SECONDS = 5.0
_TRIES = 6
Send = Callable[[SyncPrefectClient], Any]


class Ticking(Protocol):
    """Something that wants to be looked after once a second."""

    def tick(self, client: SyncPrefectClient) -> None:
        """Send what there is to send by now; an error is logged, and the next tick tries again."""


class Desk:
    """A thread that talks to the Prefect API for the stages of a run.

    Args:
        warn: Takes one line about what could not be shown.
    """

    def __init__(self, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._jobs: deque[tuple[str, Send]] = deque()
        self._ticking: list[Ticking] = []
        self._wake = threading.Event()
        self._closing = False
        self._warned = False
        context = copy_context()  # the settings of whoever opens it, an address given for a while included
        self._thread = threading.Thread(target=context.run, args=(self._work,), name="rloop-desk", daemon=True)
        self._thread.start()

    def post(self, what: str, send: Send) -> None:
        """Have something sent, in order; a server that does not answer is asked again for a while.

        Args:
            what: Its name, for the line that says it could not be shown.
            send: Makes it and sends it; called in the desk's thread.
        """
        self._jobs.append((what, send))
        self._wake.set()

    def add(self, one: Ticking) -> None:
        """Look after something from now on."""
        self._ticking.append(one)
        self._wake.set()

    def remove(self, one: Ticking, what: str) -> None:
        """Look after it for the last time, with whatever it has to send in the end."""
        self._ticking.remove(one)
        self.post(what, one.tick)

    def close(self, patience: float) -> None:
        """Send what is left, for so many seconds at most."""
        self._closing = True
        self._wake.set()
        self._thread.join(patience)

    def _work(self) -> None:
        with (
            temporary_settings(updates={PREFECT_CLIENT_MAX_RETRIES: 1}),
            # Settings of its own keep it from sharing the client of a run, which closes with the run.
            get_client(sync_client=True, httpx_settings={"timeout": _REQUEST_SECONDS}) as client,
        ):
            while not self._closing or self._jobs:
                self._wake.wait(_TICK_SECONDS)
                self._wake.clear()
                self._send_jobs(client)
                for one in tuple(self._ticking):
                    self._try(str(one), one.tick, client)

    def _send_jobs(self, client: SyncPrefectClient) -> None:
        while self._jobs:
            what, send = self._jobs[0]
            for left in reversed(range(_TRIES)):
                if not self._try(what, send, client, again=left > 0):
                    break
                time.sleep(_AGAIN_SECONDS)
            self._jobs.popleft()

    def _try(self, what: str, send: Send, client: SyncPrefectClient, again: bool = False) -> bool:
        """Whether to send it again; of what could not be sent, the first is told."""
        try:
            send(client)
        except Exception as error:  # whatever goes wrong in showing something is not the stage's business
            if again and isinstance(error, httpx.TransportError | PrefectHTTPStatusError):
                return True
            if not self._warned:
                self._warned = True
                self._warn(f"{what} could not be shown: {type(error).__name__}: {error}")
        return False
