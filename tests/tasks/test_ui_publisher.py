"""The UI publisher never fails and hardly delays its caller, whatever the server does."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest
from prefect.client.orchestration import SyncPrefectClient
from prefect.settings import PREFECT_API_URL, temporary_settings

from tasks.ui_publisher import UIPublisher

pytestmark = pytest.mark.process


@pytest.fixture
def warnings() -> list[str]:
    return []


@pytest.fixture
def publisher(warnings: list[str]) -> Iterator[UIPublisher]:
    """A publisher for a server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}/api"
        with temporary_settings(updates={PREFECT_API_URL: address}):
            made = UIPublisher(warnings.append)
        yield made


class Failing:
    """Fails at every update, and tells when there were two."""

    def __init__(self) -> None:
        self.updates = 0
        self.updated_twice = threading.Event()

    def update(self, client: SyncPrefectClient) -> None:
        self.updates += 1
        if self.updates == 2:
            self.updated_twice.set()
        raise ValueError("cannot be drawn")


def test_a_server_that_never_answers_delays_nobody(publisher: UIPublisher) -> None:
    asked, closed = threading.Event(), threading.Event()

    def ask(client: SyncPrefectClient) -> None:
        asked.set()
        client.hello()
        closed.wait(600)

    publisher.submit("a table", ask)
    assert asked.wait(120)
    publisher.close(0.5)  # returns although the table was not sent
    closed.set()


def test_a_failure_is_logged_once_and_the_rest_goes_on(publisher: UIPublisher, warnings: list[str]) -> None:
    made: list[int] = []
    failing = Failing()
    publisher.add(failing)
    assert failing.updated_twice.wait(60), "an error must not end the updates"
    for number in range(3):
        publisher.submit("a figure", lambda client: 1 / 0)
        publisher.submit("a table", lambda client, number=number: made.append(number))  # type: ignore[misc]
    publisher.remove(failing)
    publisher.close(60)
    assert made == [0, 1, 2]
    assert len(warnings) == 1 and "cannot be drawn" in warnings[0]
