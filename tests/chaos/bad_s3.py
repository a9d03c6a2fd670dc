"""The misbehaving S3 in a process of its own, so that whoever tells it what to do has no threads and can fork."""

from __future__ import annotations

import json
import os
import signal
import socket
from typing import Any
from urllib.parse import urlsplit

from tests.chaos.warm import fork
from tests.store.faulty_s3 import FaultyS3


class BadS3:
    """A proxy before a real S3 server.

    Args:
        server: URL of the server.
        seed: Of the draw of its faults.

    Attributes:
        url: What a client is told instead of the server's own.
    """

    def __init__(self, server: str, seed: int = 0) -> None:
        ours, theirs = socket.socketpair()
        address = urlsplit(server)
        assert address.hostname and address.port
        host, port = address.hostname, address.port
        self._pid = fork(lambda: _serve(FaultyS3(host, port, seed), theirs), keep=[theirs.fileno()])
        theirs.close()
        self._ours, self._lines = ours, ours.makefile("r")
        self.url: str = json.loads(self._lines.readline())

    def behave(self, *, rate: float = 0.0, faults: tuple[str, ...] = (), gone: bool = False) -> Any:
        """From now on do this; returns how often it did what so far."""
        order = {"rate": rate, "faults": faults, "gone": gone}
        self._ours.sendall(json.dumps(order).encode() + b"\n")
        return json.loads(self._lines.readline())

    def stop(self) -> None:
        """End it."""
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        self._ours.close()

    @property
    def pid(self) -> int:
        """Its process."""
        return self._pid


def _serve(proxy: FaultyS3, link: socket.socket) -> int:
    link.sendall(json.dumps(proxy.url).encode() + b"\n")
    for line in link.makefile("r"):
        order = json.loads(line)
        proxy.rate, proxy.faults = order["rate"], tuple(order["faults"])
        (proxy.gone.set if order["gone"] else proxy.gone.clear)()
        link.sendall(json.dumps(proxy.seen).encode() + b"\n")
    return 0
