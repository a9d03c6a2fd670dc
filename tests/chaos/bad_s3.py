"""A faulty S3 proxy in a process of its own, so that the harness has no threads and can fork."""

from __future__ import annotations

import json
import os
import signal
import socket
from typing import Any
from urllib.parse import urlsplit

from tests.chaos.processes import fork
from tests.store.faulty_s3 import FaultyS3


class BadS3:
    """A faulty proxy of a real S3 server.

    Args:
        server: URL of the server.
        seed: Seed of its faults.

    Attributes:
        url: URL for clients.
    """

    def __init__(self, server: str, seed: int = 0) -> None:
        connection, other_end = socket.socketpair()
        address = urlsplit(server)
        assert address.hostname and address.port
        host, port = address.hostname, address.port
        self._pid = fork(lambda: _serve(FaultyS3(host, port, seed), other_end), keep=[other_end.fileno()])
        other_end.close()
        self._connection, self._lines = connection, connection.makefile("r")
        self.url: str = json.loads(self._lines.readline())

    def behave(self, *, rate: float = 0.0, faults: tuple[str, ...] = (), gone: bool = False) -> Any:
        """Set the faults from now on; return the number of each so far."""
        settings = {"rate": rate, "faults": faults, "gone": gone}
        self._connection.sendall(json.dumps(settings).encode() + b"\n")
        return json.loads(self._lines.readline())

    def stop(self) -> None:
        """Kill the process."""
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        self._connection.close()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._pid


def _serve(proxy: FaultyS3, connection: socket.socket) -> int:
    connection.sendall(json.dumps(proxy.url).encode() + b"\n")
    for line in connection.makefile("r"):
        settings = json.loads(line)
        proxy.rate, proxy.faults = settings["rate"], tuple(settings["faults"])
        (proxy.gone.set if settings["gone"] else proxy.gone.clear)()
        connection.sendall(json.dumps(proxy.seen).encode() + b"\n")
    return 0
