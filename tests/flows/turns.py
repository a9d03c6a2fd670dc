"""Slots of a concurrency limit, through the server's API."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import copy_context

from tasks.gpu_concurrency import concurrency_slot
from tests.flows.server import Server


@contextmanager
def all_slots_taken(server: Server, name: str) -> Iterator[None]:
    """Activate an existing limit, and hold its only slot during the block."""
    server.patch(f"/v2/concurrency_limits/{name}", {"active": True, "limit": 1})
    with server.client(), concurrency_slot(name, "somebody", print):
        yield


def spans_held(server: Server, name: str, count: int, seconds: float) -> list[tuple[float, float]]:
    """Start so many stages at once, and return the times (begin, end) at which each held a slot, sorted."""
    spans: list[tuple[float, float]] = []

    def stage() -> None:
        with concurrency_slot(name, "one of many", print):
            began = time.monotonic()
            time.sleep(seconds)
            spans.append((began, time.monotonic()))

    with server.client():
        threads = [threading.Thread(target=copy_context().run, args=(stage,)) for _ in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
    return sorted(spans)
