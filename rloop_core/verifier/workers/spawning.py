"""Start workers: one template process per caller, started with a clean state, forks them in milliseconds.

Starting Python and importing the engine takes more than a second, too long for every worker that is killed. Forking the
caller would copy its threads' locks, its GPU and its `__main__`. So a fresh interpreter imports the engine once and
forks from there. It has a single thread, so forks are safe and workers die with it. It ends when its socket closes,
which the kernel does when the caller ends.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import socket
import subprocess
import sys
import threading
import weakref
from typing import Any

from rloop_core.errors import VerifierError
from rloop_core.verifier.workers.worker import COUNT, READY, REPLY, REQUEST, receive_exactly

_START_SECONDS = 120.0
_ANSWER_SECONDS = 30.0
_ATTEMPTS = 6
_BOOT = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[1]); "
    "from rloop_core.verifier.workers.worker import template_main; template_main(int(sys.argv[2]))"
)


class WorkerGoneError(Exception):
    """The worker has closed its connection, or does not read."""


def _does_not_start(reason: str) -> VerifierError:
    return VerifierError(
        f"the comparison workers do not start: {reason}",
        field="verifier",
        fix="check that sympy imports in this environment and that memory is left for a process",
    )


class Template:
    """The process that forks this caller's workers.

    Raises:
        VerifierError: The engine cannot be imported.
        OSError: The process ended or did not answer while it started.
    """

    def __init__(self) -> None:
        self.link, child_link = socket.socketpair()
        # -P: a file in the working directory must not replace a module. PYTHONHASHSEED: hashes must not vary.
        environment = {**os.environ, "PYTHONHASHSEED": "0", "MPMATH_NOGMPY": "1", "SYMPY_GROUND_TYPES": "python"}
        paths = json.dumps([path for path in sys.path if isinstance(path, str)])
        with child_link:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _BOOT, paths, str(child_link.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment,
                pass_fds=(child_link.fileno(),),
            )
        self._lock = threading.Lock()
        self.link.settimeout(_START_SECONDS)
        try:
            reason = self._receive(COUNT.unpack(self._receive(COUNT.size))[0]).decode("utf-8", "replace")
        except OSError:
            self.end()
            raise
        self.link.settimeout(_ANSWER_SECONDS)
        if reason:
            self.end()
            raise _does_not_start(reason)

    def fork(self, connection: socket.socket) -> int:
        """Fork a worker that serves the connection; return its pid.

        Raises:
            OSError: The template is gone, or the system has no room for a process.
        """
        with self._lock:
            socket.send_fds(self.link, [REQUEST.pack(b"F", 0)], [connection.fileno()])
            pid: int = REPLY.unpack(self._receive(REPLY.size))[0]
        if not pid:
            raise OSError("the system starts no more processes")
        return pid

    def end_worker(self, pid: int) -> int:
        """Kill a worker and return its wait status; 0 when that is no longer known."""
        try:
            with self._lock:
                self.link.sendall(REQUEST.pack(b"E", pid))
                status: int = REPLY.unpack(self._receive(REPLY.size))[0]
        except OSError:
            _discard_template(self)  # a late reply would be read as that of the next request
            return 0
        return status

    def end(self) -> None:
        """End the process and all of its workers."""
        self.link.close()
        self._process.kill()
        self._process.wait()

    def _receive(self, count: int) -> bytes:
        data = receive_exactly(self.link, count)
        if data is None:
            raise ConnectionResetError("the process ended while it started")
        return data


class Worker:
    """A worker process, idle or with a task.

    Args:
        policies: What counts as the same answer, as JSON.
        memory_mb: Its address space, in MiB.

    Raises:
        VerifierError: It does not start.
    """

    def __init__(self, policies: dict[str, Any], memory_mb: int) -> None:
        for attempt in range(1, _ATTEMPTS + 1):  # the template or the worker may be killed from outside
            try:
                self._start(policies, memory_mb)
                return
            except (OSError, WorkerGoneError) as error:
                if attempt == _ATTEMPTS:
                    raise _does_not_start(str(error)) from error
                if isinstance(error, OSError):
                    _discard_template(getattr(self, "_template", None))

    def _start(self, policies: dict[str, Any], memory_mb: int) -> None:
        self._template = _current_template()
        self.connection, child_link = socket.socketpair()
        with child_link:
            self.pid = self._template.fork(child_link)
        self.connection.settimeout(_ANSWER_SECONDS)
        _workers.add(self)
        try:
            self.send({"policies": policies, "memory_mb": memory_mb})
            if self.receive() != READY:
                raise WorkerGoneError("a worker ended while it started")
        except WorkerGoneError:
            self.end()
            raise

    def send(self, message: dict[str, Any]) -> None:
        """Send one message.

        Raises:
            WorkerGoneError: The worker cannot take it.
        """
        body = json.dumps(message).encode()
        try:
            self.connection.sendall(COUNT.pack(len(body)) + body)
        except OSError as error:
            raise WorkerGoneError("a worker takes no task") from error

    def receive(self) -> bytes:
        """Receive result codes, one byte a pair; no bytes once the worker is gone."""
        try:
            return self.connection.recv(4096)
        except OSError:
            return b""

    def is_idle(self) -> bool:
        """Return True if the worker still waits for a task: nothing was received and the connection is open."""
        poll = select.poll()
        poll.register(self.connection, select.POLLIN)
        return not poll.poll(0)

    def end(self) -> int:
        """Kill the worker and return its wait status; 0 if that is unknown."""
        self.connection.close()
        return self._template.end_worker(self.pid)


_workers: weakref.WeakSet[Worker] = weakref.WeakSet()
_template: Template | None = None
_template_lock = threading.Lock()


def _current_template() -> Template:
    global _template
    with _template_lock:
        if _template is None:
            _template = Template()
        return _template


@atexit.register
def _discard_template(failed: Template | None = None) -> None:
    """End the template, unless another thread has replaced the one that failed."""
    global _template
    with _template_lock:
        if failed is not None and failed is not _template:
            return
        template, _template = _template, None
    if template is not None:
        template.end()


def _forget_parent() -> None:
    """Close the connections to the parent's template and workers, in a forked child."""
    global _template, _template_lock
    _template_lock = threading.Lock()
    template, _template = _template, None
    for connection in [*(worker.connection for worker in list(_workers)), *([template.link] if template else [])]:
        connection.close()


os.register_at_fork(after_in_child=_forget_parent)
