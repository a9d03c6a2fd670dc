"""What shows things never fails and hardly delays what computes, whatever the server does."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest
from prefect.client.orchestration import SyncPrefectClient
from prefect.settings import PREFECT_API_URL, temporary_settings

from tasks.ui_publisher import Desk


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address at which connections are accepted and nothing is ever answered."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/api"


pytestmark = pytest.mark.process


class Looked:
    """Counts how often it was looked after."""

    def __init__(self) -> None:
        self.ticks = 0
        self.seen = threading.Event()

    def tick(self, client: SyncPrefectClient) -> None:
        self.ticks += 1
        if self.ticks == 2:
            self.seen.set()
        raise ValueError("cannot be drawn")


def test_a_server_that_never_answers_delays_nobody(nobody: str) -> None:
    warnings: list[str] = []
    with temporary_settings(updates={PREFECT_API_URL: nobody}):
        desk = Desk(warnings.append)
    asked, returned = threading.Event(), threading.Event()

    def ask(client: SyncPrefectClient) -> None:
        asked.set()
        client.hello()
        returned.wait(600)

    desk.post("a table", ask)
    assert asked.wait(120)
    desk.close(0.5)  # returns though what was posted is not done
    returned.set()


def test_what_cannot_be_made_is_told_once_and_the_rest_goes_on(nobody: str) -> None:
    warnings: list[str] = []
    made: list[int] = []
    with temporary_settings(updates={PREFECT_API_URL: nobody}):
        desk = Desk(warnings.append)
    looked = Looked()
    desk.add(looked)
    assert looked.seen.wait(60), "an error must not end the looking after"
    for number in range(3):
        desk.post("a figure", lambda client: 1 / 0)
        desk.post("a table", lambda client, number=number: made.append(number))  # type: ignore[misc]
    desk.remove(looked, "the last look")
    desk.close(60)
    assert made == [0, 1, 2]
    assert len(warnings) == 1 and "cannot be drawn" in warnings[0]
