"""Main functions of the pool's processes: a template with the engine imported, and the workers that it forks.

They talk to the caller over sockets, in counted bytes and JSON; nothing is unpickled. The kernel kills a worker that
uses too much processor time for one pair, which also ends a hang inside C code.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import signal
import socket
import struct
import sys
from typing import Any, NoReturn

from rloop_core.runtime.lifetime import die_with_parent

REQUEST = struct.Struct("!ci")
"""Request to the template: b"F" 0 forks a worker for the socket sent along, b"E" pid ends one."""
REPLY = struct.Struct("!i")
"""Its reply: the worker's pid or 0 if the fork failed; the wait status of an ended worker."""
COUNT = struct.Struct("!I")
"""Precedes a message: its number of bytes."""

READY, EQUAL, UNEQUAL, NO_MEMORY, TOO_DEEP, FAILED, LEAVING = b"R", b"1", b"0", b"m", b"d", b"e", b"x"
"""A worker sends READY at its start, one of the next five for each pair, and LEAVING before it exits by itself."""
TOO_SLOW = signal.SIGPROF
"""The signal that kills a worker whose processor time for one pair is used up."""

_MAX_PAIRS = 10_000
_SPARE_BYTES = 2**24


def template_main(descriptor: int) -> NoReturn:
    """Import the engine, report success or the error, then fork and end workers on request until the caller ends."""
    link = socket.socket(fileno=descriptor)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the caller
    reason = b""
    try:
        _import_engine()
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"[:500].encode("utf-8", "replace")
    link.sendall(COUNT.pack(len(reason)) + reason)
    if reason:
        os._exit(1)
    workers: dict[int, int | None] = {}  # the wait status of each that has ended
    while True:
        request, descriptors, _, _ = socket.recv_fds(link, REQUEST.size, 1)
        if len(request) < REQUEST.size:
            os._exit(0)  # the kernel then kills the workers
        _reap(workers)
        name, pid = REQUEST.unpack(request)
        link.sendall(REPLY.pack(_fork(link, descriptors[0], workers) if name == b"F" else _end(pid, workers)))


def _import_engine() -> None:
    for name in ("gmpy2", "flint"):  # with gmpy2 a power tower aborts the process
        sys.modules[name] = None  # type: ignore[assignment]
    from rloop_core.verifier.engine.compare import warm_up

    warm_up()
    sys.dont_write_bytecode = True
    gc.collect()
    gc.freeze()  # so that collections in workers copy no shared pages


def _fork(link: socket.socket, descriptor: int, workers: dict[int, int | None]) -> int:
    """Fork a worker that serves the socket; return its pid, or 0."""
    template = os.getpid()
    try:
        pid = os.fork()
    except OSError:
        pid = -1
    if pid == 0:
        try:
            link.close()
            die_with_parent(template)
            _serve(socket.socket(fileno=descriptor))
        finally:
            os._exit(1)
    os.close(descriptor)
    if pid < 0:
        return 0
    workers[pid] = None
    return pid


def _end(pid: int, workers: dict[int, int | None]) -> int:
    """Kill a worker, unless it is dead already, and return its wait status. Only this process reaps it."""
    status = workers.pop(pid, 0)
    if status is None:
        os.kill(pid, signal.SIGKILL)
        status = os.waitpid(pid, 0)[1]
    return status


def _reap(workers: dict[int, int | None]) -> None:
    """Reap the workers that have died: a caller may drop a verifier without closing it."""
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            workers[ended[0]] = ended[1]


def _serve(link: socket.socket) -> None:
    """Compare the pairs of each message, until the caller ends or this process has used much memory."""
    from rloop_core.verifier.policies import Policies

    settings = _read(link)
    if settings is None:
        return
    policies, limit = Policies(**settings["policies"]), settings["memory_mb"] * 2**20
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # it has nothing to write
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    link.sendall(READY)
    compared = 0
    while (task := _read(link)) is not None:
        for answer, gold in task["pairs"]:
            signal.setitimer(signal.ITIMER_PROF, task["seconds"])
            result = _compare(answer, gold, policies)
            signal.setitimer(signal.ITIMER_PROF, 0)
            link.sendall(result)
            compared += 1
            if result == NO_MEMORY:
                return
            if compared == _MAX_PAIRS or _peak_bytes() > limit // 2:
                link.sendall(LEAVING)  # memory of earlier pairs must not be missing for later ones
                return


def _compare(answer: str, gold: str, policies: Any) -> bytes:
    from sympy.core.random import seed

    from rloop_core.verifier.engine.compare import compare_in_engine

    seed(0)  # sympy tries random points; a verdict must not depend on earlier pairs
    try:
        if compare_in_engine(answer, gold, policies):
            return EQUAL
        bytearray(_SPARE_BYTES)  # sympy may swallow a MemoryError: without spare memory, "unequal" is not certain
        return UNEQUAL
    except MemoryError:
        return NO_MEMORY
    except RecursionError:
        return TOO_DEEP
    except Exception:
        return FAILED


def _peak_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _read(link: socket.socket) -> Any:
    """Receive one message; None at the end of the connection."""
    head = receive_exactly(link, COUNT.size)
    body = receive_exactly(link, COUNT.unpack(head)[0]) if head is not None else None
    return None if body is None else json.loads(body)


def receive_exactly(link: socket.socket, count: int) -> bytes | None:
    """Receive that many bytes; None at the end of the connection."""
    parts = bytearray()
    while len(parts) < count:
        more = link.recv(count - len(parts))
        if not more:
            return None
        parts += more
    return bytes(parts)
