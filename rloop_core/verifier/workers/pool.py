"""Compare pairs in killable processes, so that a hostile answer costs only its own verdict.

- A pair whose worker dies (memory, a crash, a kill from outside) is tried once more in a fresh worker, then it is
  `error`. A pair that takes too long is not tried again.
- Seconds are of processor time, so a busy machine changes no verdict; four times as many seconds may pass on the clock.
- After a few timeouts in one call the rest of its pairs get a fifth of the time.

Starting Python and importing the engine takes more than a second, too long for every worker that is killed. Forking the
caller would copy its threads' locks, its GPU and its `__main__`. So one template process per caller, a fresh
interpreter with a single thread, imports the engine once and forks the workers in milliseconds. It ends when its socket
closes, which the kernel does when the caller ends, and the workers end with it.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rloop_core.errors import VerifierError
from rloop_core.verifier.policies import DEFAULT, Policies
from rloop_core.verifier.types import CORRECT, WRONG, Outcome, Verdict
from rloop_core.verifier.workers.worker import (
    COUNT,
    DEAD,
    EQUAL,
    FAILED,
    NO_MEMORY,
    TOO_DEEP,
    TOO_SLOW,
    UNEQUAL,
    receive,
    send,
)

_CLOCK_FACTOR = 4.0
_MAX_TIMEOUTS = 8
"""Timeouts in one call after which its other pairs get less time."""
_REDUCED_TIME = 0.2
_MAX_DEATHS = 2
"""Worker deaths after which a pair is `error`."""
_START_SECONDS = 120.0
_ATTEMPTS = 6

_OUTCOMES = {
    EQUAL: CORRECT,
    UNEQUAL: WRONG,
    TOO_DEEP: Outcome(Verdict.error, "the comparison is nested too deeply for the math engine"),
    FAILED: Outcome(Verdict.error, "the math engine failed on this pair"),
}
_BOOT = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[1]); "
    "from rloop_core.verifier.workers.worker import template_main; template_main(int(sys.argv[2]))"
)


class _Task(NamedTuple):
    """The place of the pair that a worker compares, its processor seconds, and its deadline on the clock."""

    place: int
    seconds: float
    deadline: float


class ComparisonPool:
    """Worker processes that compare (answer, gold) pairs with sympy; started by the first pair that needs one.

    Safe from several threads, and in a forked child of its owner, which starts workers of its own.

    Args:
        workers: Processes.
        timeout: Seconds of processor time for one pair; then its worker is killed.
        memory_mb: Address space of a worker, in MiB.
        policies: What counts as the same answer.
    """

    def __init__(self, workers: int, timeout: float, memory_mb: int, policies: Policies = DEFAULT) -> None:
        self._size, self._timeout, self._memory_mb = workers, timeout, memory_mb
        self._policies = policies.model_dump(mode="json")
        self.forget()
        _pools.add(self)

    def forget(self) -> None:
        """Begin without workers: in a forked child, those there are belong to the parent."""
        self._idle: list[socket.socket] = []
        self._free = threading.Semaphore(self._size)

    def compare_many(self, pairs: Sequence[tuple[str, str]]) -> list[Outcome]:
        """Return one outcome a pair, in order: correct, wrong, timeout, or error with its reason.

        Raises:
            VerifierError: No worker starts.
        """
        outcomes = [Outcome(Verdict.error)] * len(pairs)
        waiting, deaths, timeouts = deque(range(len(pairs))), Counter[int](), 0
        busy: dict[socket.socket, _Task] = {}
        try:
            while waiting or busy:
                while waiting and (worker := self._take(wait=not busy)):
                    index = waiting.popleft()
                    seconds = self._timeout * (1 if timeouts < _MAX_TIMEOUTS else _REDUCED_TIME)
                    busy[worker] = _Task(index, seconds, time.monotonic() + seconds * _CLOCK_FACTOR)
                    with contextlib.suppress(OSError):  # its death is seen below
                        send(worker, {"seconds": seconds, "pair": pairs[index], "policies": self._policies})
                for worker, reply in _replies(busy):
                    index, outcome = busy[worker].place, self._outcome(busy.pop(worker), reply)
                    self._give_back(worker, keep=reply in _OUTCOMES)
                    timeouts += outcome.verdict is Verdict.timeout
                    outcomes[index] = outcome
                    if outcome.verdict is Verdict.error and (reply or b"")[:1] not in _OUTCOMES:
                        deaths[index] += 1
                        if deaths[index] < _MAX_DEATHS:
                            waiting.appendleft(index)
        finally:
            for worker in busy:
                self._give_back(worker, keep=False)
        return outcomes

    def _outcome(self, task: _Task, reply: bytes | None) -> Outcome:
        """Return the outcome of a pair by the reply of its worker; None is a worker that is overdue."""
        code, by_signal = (reply or b"")[:1], 0
        if code in _OUTCOMES:
            return _OUTCOMES[code]
        if reply and code == DEAD:
            by_signal = reply[-1]
        if reply is None or by_signal == TOO_SLOW:
            spent = f"{task.seconds * _CLOCK_FACTOR:g} s on the clock" if reply is None else f"{task.seconds:g} s"
            return Outcome(Verdict.timeout, f"the comparison was stopped after {spent}")
        cause = f"needed more than {self._memory_mb} MiB" if code == NO_MEMORY else "lost its process twice"
        cause += f" ({signal.Signals(by_signal).name})" if by_signal else ""
        return Outcome(Verdict.error, f"the comparison {cause}")

    def _take(self, wait: bool) -> socket.socket | None:
        """Return an idle or new worker; when all are in use, wait for one, or return None if not `wait`."""
        if not self._free.acquire(blocking=wait):
            return None
        try:
            with contextlib.suppress(IndexError):
                while True:
                    worker = self._idle.pop()
                    if not _readable([worker], 0):  # otherwise it has ended
                        return worker
                    worker.close()
            return _start_worker(self._memory_mb)
        except BaseException:
            self._free.release()
            raise

    def _give_back(self, worker: socket.socket, keep: bool) -> None:
        """Keep a worker for other pairs, or end it."""
        if keep:
            self._idle.append(worker)
        else:
            worker.close()
        self._free.release()

    def close(self) -> None:
        """End the idle workers. A later comparison starts new ones."""
        with contextlib.suppress(IndexError):
            while True:
                self._idle.pop().close()


def _readable(workers: Iterable[socket.socket], seconds: float) -> list[socket.socket]:
    """Return the workers that say something within so many seconds, or have ended."""
    by_descriptor = {worker.fileno(): worker for worker in workers}
    waiting = select.poll()
    for descriptor in by_descriptor:
        waiting.register(descriptor, select.POLLIN)
    return [by_descriptor[descriptor] for descriptor, _ in waiting.poll(seconds * 1000)]


def _replies(busy: dict[socket.socket, _Task]) -> list[tuple[socket.socket, bytes | None]]:
    """Wait for a reply or a deadline; return each worker that replied (no bytes: it is gone) or is overdue (None)."""
    now = time.monotonic()
    readable = _readable(busy, max(0.0, min(task.deadline for task in busy.values()) - now))
    replies: list[tuple[socket.socket, bytes | None]] = []
    for worker, task in busy.items():
        if worker in readable:
            try:
                replies.append((worker, worker.recv(16)))
            except OSError:
                replies.append((worker, b""))
        elif task.deadline <= now:  # before this read and still silent: this thread itself may have been delayed
            replies.append((worker, None))
    return replies


class _Template:
    """The process that forks this caller's workers.

    Raises:
        VerifierError: The engine cannot be imported.
        OSError: The process ended or did not answer while it started.
    """

    def __init__(self) -> None:
        self.link, theirs = socket.socketpair()
        # -P: a file in the working directory must not replace a module. PYTHONHASHSEED: hashes must not vary.
        environment = {**os.environ, "PYTHONHASHSEED": "0", "MPMATH_NOGMPY": "1", "SYMPY_GROUND_TYPES": "python"}
        paths = json.dumps([path for path in sys.path if isinstance(path, str)])
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-c", _BOOT, paths, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment,
                pass_fds=(theirs.fileno(),),
            )
        _links.add(self.link)
        self.link.settimeout(_START_SECONDS)
        try:
            reason = receive(self.link)
        except OSError:
            reason = None
        if reason != "":
            self.end()
            raise OSError("the process ended while it started") if reason is None else _does_not_start(reason)

    def end(self) -> None:
        """End the process and all of its workers."""
        self.link.close()
        self.process.kill()
        self.process.wait()


_pools: weakref.WeakSet[ComparisonPool] = weakref.WeakSet()
_links: weakref.WeakSet[socket.socket] = weakref.WeakSet()
"""The connections to the template and to the workers."""
_template: _Template | None = None
_template_lock = threading.Lock()


def _start_worker(memory_mb: int) -> socket.socket:
    """Start a worker and return the connection to it; closing that ends the worker."""
    global _template
    for attempt in range(1, _ATTEMPTS + 1):
        template = None
        try:
            with _template_lock:
                template = _template = _template or _Template()
            connection, theirs = socket.socketpair()
            with theirs:
                socket.send_fds(template.link, [COUNT.pack(memory_mb)], [theirs.fileno()])
            break
        except OSError as error:  # the template may be killed from outside
            if attempt == _ATTEMPTS:
                raise _does_not_start(str(error)) from error
            _end_template(template)
    _links.add(connection)
    return connection


@atexit.register
def _end_template(failed: _Template | None = None) -> None:
    """End the template, unless another thread has replaced the one that failed."""
    global _template
    with _template_lock:
        if _template is not None and failed in (None, _template):
            _template.end()
            _template = None


def _does_not_start(reason: str) -> VerifierError:
    fix = "check that sympy imports in this environment and that memory is left for a process"
    return VerifierError(f"the comparison workers do not start: {reason}", field="verifier", fix=fix)


def _forget_parent() -> None:
    """Close the connections to the parent's template and workers, in a forked child."""
    global _template, _template_lock
    _template, _template_lock = None, threading.Lock()
    for link in list(_links):
        link.close()
    for pool in list(_pools):
        pool.forget()


os.register_at_fork(after_in_child=_forget_parent)
