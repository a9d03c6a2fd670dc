"""Main functions of the pool's processes: a template with the engine imported, and the workers that it forks.

They talk to the caller over sockets, in JSON; nothing is unpickled. The kernel kills a worker that uses too much
processor time for one pair, which also ends a hang inside C code. A worker ends when its caller closes the connection,
busy or idle: the template sees that and kills it.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import select
import signal
import socket
import struct
import sys
from typing import TYPE_CHECKING, Any, NoReturn

from rloop_core.runtime.lifetime import die_with_parent

if TYPE_CHECKING:
    from rloop_core.verifier.policies import Policies

COUNT = struct.Struct("!I")
"""Precedes a message: its number of bytes. Alone, sent with a socket, it asks the template for a worker that serves the
socket with so many MiB of address space."""

EQUAL, UNEQUAL, NO_MEMORY, TOO_DEEP, FAILED, LEAVING, DEAD = b"1", b"0", b"m", b"d", b"e", b"x", b"s"
"""A worker answers a pair with one of the first five, and LEAVING behind it before it exits by itself; when it has
ended, the template sends DEAD and the number of the signal that killed it, or 0."""
TOO_SLOW = signal.SIGPROF
"""The signal that kills a worker whose processor time for one pair is used up."""

_MAX_PAIRS = 10_000
_SPARE_BYTES = 2**24


def template_main(descriptor: int) -> NoReturn:
    """Import the engine, send an empty text or the error, then fork workers on request until the caller ends."""
    link = socket.socket(fileno=descriptor)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the caller
    try:
        _import_engine()
    except Exception as error:
        send(link, f"{type(error).__name__}: {error}"[:500])
        os._exit(1)
    send(link, "")
    watched = select.poll()
    watched.register(link, select.POLLIN)
    workers: dict[int, tuple[int, int, socket.socket]] = {}
    """Pid, pipe and socket of each worker, by the descriptor of either; the worker alone holds the pipe's other end."""
    while True:
        ready = watched.poll()[0][0]
        if ready != descriptor:
            pid, alive, connection = workers[ready]
            for one in (alive, connection.fileno()):
                watched.unregister(one)
                del workers[one]
            os.close(alive)
            _tell_end(pid, connection)
            continue
        request, sockets, _, _ = socket.recv_fds(link, COUNT.size, 1)
        if not sockets:
            os._exit(0)  # the kernel then kills the workers
        connection = socket.socket(fileno=sockets[0])
        pid, alive = _fork(link, connection, COUNT.unpack(request)[0])
        for one in (alive, connection.fileno()):
            watched.register(one, 0)  # for its hang-up, which is always reported
            workers[one] = pid, alive, connection


def _import_engine() -> None:
    for name in ("gmpy2", "flint"):  # with gmpy2 a power tower aborts the process
        sys.modules[name] = None  # type: ignore[assignment]
    from rloop_core.verifier.engine.compare import warm_up

    warm_up()
    sys.dont_write_bytecode = True
    gc.collect()
    gc.freeze()  # so that collections in workers copy no shared pages


def _fork(link: socket.socket, connection: socket.socket, memory_mb: int) -> tuple[int, int]:
    """Fork a worker; return its pid (0 if the system starts no more) and the pipe that hangs up when it ends."""
    template = os.getpid()
    alive, held = os.pipe()
    try:
        pid = os.fork()
        if not pid:
            try:
                link.close()
                die_with_parent(template)
                _serve(connection, memory_mb)
            finally:
                os._exit(1)
    except OSError:
        pid = 0
    os.close(held)
    return pid, alive


def _tell_end(pid: int, connection: socket.socket) -> None:
    """Kill a worker whose caller has left; tell the caller of any other what ended it. Only this process reaps it."""
    status = 0
    if pid:
        os.kill(pid, signal.SIGKILL)  # changes nothing for one that has ended
        status = os.waitpid(pid, 0)[1]
    with connection, contextlib.suppress(OSError):
        connection.sendall(DEAD + bytes([os.WTERMSIG(status)]))


def _serve(link: socket.socket, memory_mb: int) -> None:
    """Compare the pairs that arrive, until the caller ends or this process has used much memory."""
    from rloop_core.verifier.policies import Policies

    limit = memory_mb * 2**20
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # it has nothing to write
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    compared = 0
    while (task := receive(link)) is not None:
        signal.setitimer(signal.ITIMER_PROF, task["seconds"])
        result = _compare(task["pair"], Policies(**task["policies"]))
        signal.setitimer(signal.ITIMER_PROF, 0)
        compared += 1
        # Memory of earlier pairs must not be missing for later ones.
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        leaves = result == NO_MEMORY or compared == _MAX_PAIRS or peak > limit // 2
        link.sendall(result + LEAVING * leaves)
        if leaves:
            return


def _compare(pair: list[str], policies: Policies) -> bytes:
    from sympy.core.random import seed

    from rloop_core.verifier.engine.compare import compare_in_engine

    seed(0)  # sympy tries random points; a verdict must not depend on earlier pairs
    try:
        if compare_in_engine(pair[0], pair[1], policies):
            return EQUAL
        bytearray(_SPARE_BYTES)  # sympy may swallow a MemoryError: without spare memory, "unequal" is not certain
        return UNEQUAL
    except MemoryError:
        return NO_MEMORY
    except RecursionError:
        return TOO_DEEP
    except Exception:
        return FAILED


def send(link: socket.socket, message: object) -> None:
    """Send one message as JSON."""
    body = json.dumps(message).encode()
    link.sendall(COUNT.pack(len(body)) + body)


def receive(link: socket.socket) -> Any:
    """Receive one message; None at the end of the connection."""
    head = link.recv(COUNT.size, socket.MSG_WAITALL)
    body = link.recv(COUNT.unpack(head)[0], socket.MSG_WAITALL) if len(head) == COUNT.size else b""
    return json.loads(body) if body else None
