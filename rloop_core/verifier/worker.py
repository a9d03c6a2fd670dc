"""The other side of the pool: a template process with the engine imported, and the workers that it forks.

They talk with the caller over sockets, in counted bytes and JSON; nothing is unpickled. A worker has the kernel kill it
when one pair takes too much processor time, so that a hang inside C code ends too, and nobody has to watch it.
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
"""What the template is told: b"F" 0 to fork a worker for the socket that comes along, b"E" pid to end one."""
REPLY = struct.Struct("!i")
"""What it answers: the worker's pid, 0 when there can be none; the wait status of an ended worker."""
COUNT = struct.Struct("!I")
"""Precedes a message of that many bytes."""

READY, EQUAL, UNEQUAL, NO_MEMORY, TOO_DEEP, FAILED, LEAVING = b"R", b"1", b"0", b"m", b"d", b"e", b"x"
"""What a worker says: READY at its start, one of the next five for each pair, LEAVING before it ends by itself."""
TOO_SLOW = signal.SIGPROF
"""The signal that ends a worker whose processor time for one pair is used up."""

_PAIRS_OF_A_LIFE = 10_000


def template_main(descriptor: int) -> NoReturn:
    """Import the engine, say so (or why not), then fork and end workers on request until the caller is gone."""
    link = socket.socket(fileno=descriptor)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the caller, whose end is noticed
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
            os._exit(0)  # and the kernel ends the workers with us
        _reap(workers)
        name, pid = REQUEST.unpack(request)
        link.sendall(REPLY.pack(_fork(link, descriptors[0], workers) if name == b"F" else _end(pid, workers)))


def _import_engine() -> None:
    for name in ("gmpy2", "flint"):  # with gmpy2 a power tower aborts the process
        sys.modules[name] = None  # type: ignore[assignment]
    import latex2sympy2_extended  # noqa: F401 - a reader that cannot be imported must not pass for unreadable answers
    import math_verify  # noqa: F401

    from rloop_core.verifier.engine import warm_up

    warm_up()
    sys.dont_write_bytecode = True
    gc.collect()
    gc.freeze()  # a collection in a worker then copies no page that it shares with the others


def _fork(link: socket.socket, descriptor: int, workers: dict[int, int | None]) -> int:
    """The pid of a new worker that serves the socket."""
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
    """Kill a worker, unless it is dead already, and say how it died. Nobody else reaps it: the number is its own."""
    status = workers.pop(pid, 0)
    if status is None:
        os.kill(pid, signal.SIGKILL)
        status = os.waitpid(pid, 0)[1]
    return status


def _reap(workers: dict[int, int | None]) -> None:
    """Let go of every worker that has died: a caller may forget a verifier without closing it."""
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            workers[found[0]] = found[1]


def _serve(link: socket.socket) -> None:
    """Compare the pairs of each message that arrives, until the caller is gone or this process is used up."""
    from rloop_core.verifier.policies import Policies

    settings = _read(link)
    if settings is None:
        return
    policies, limit = Policies(**settings["policies"]), settings["memory_mb"] * 2**20
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # what reads text from strangers has nothing to write
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    link.sendall(READY)
    compared = 0
    while (task := _read(link)) is not None:
        for answer, gold in task["pairs"]:
            signal.setitimer(signal.ITIMER_PROF, task["seconds"])
            said = _compare(answer, gold, policies)
            signal.setitimer(signal.ITIMER_PROF, 0)
            link.sendall(said)
            compared += 1
            if said == NO_MEMORY:
                return
            if compared == _PAIRS_OF_A_LIFE or _peak_bytes() > limit // 2:
                link.sendall(LEAVING)  # what earlier pairs left behind must not cost a later one its memory
                return


def _compare(answer: str, gold: str, policies: Any) -> bytes:
    from sympy.core.random import seed

    from rloop_core.verifier.engine import compare_in_engine

    seed(0)  # the engine tries random points; a verdict must not depend on the pairs before it
    try:
        return EQUAL if compare_in_engine(answer, gold, policies) else UNEQUAL
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
    """The next message, None at the end of the connection."""
    head = _exactly(link, COUNT.size)
    body = _exactly(link, COUNT.unpack(head)[0]) if head is not None else None
    return None if body is None else json.loads(body)


def _exactly(link: socket.socket, count: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < count:
        more = link.recv(count - len(parts))
        if not more:
            return None
        parts += more
    return bytes(parts)
