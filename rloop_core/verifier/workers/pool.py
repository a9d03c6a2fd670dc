"""Compare pairs in killable processes, so that a hostile answer costs only its own verdict.

A worker takes several pairs at once and reports each verdict when it is decided, so a death concerns only the pair
under way.

- A pair whose worker dies (memory, a crash, a kill from outside) is tried once more in a fresh worker, then it is
  `error`. A pair that takes too long is not tried again.
- Seconds are of processor time, so a busy machine changes no verdict; four times as many seconds may pass on the clock.
- After a few timeouts in one call the rest of its pairs get a fifth of the time.
"""

from __future__ import annotations

import os
import selectors
import signal
import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from rloop_core.verifier.policies import DEFAULT, Policies
from rloop_core.verifier.types import CORRECT, WRONG, Outcome, Verdict
from rloop_core.verifier.workers.spawning import Worker, WorkerGoneError
from rloop_core.verifier.workers.worker import EQUAL, FAILED, LEAVING, NO_MEMORY, TOO_DEEP, TOO_SLOW, UNEQUAL

_CHUNK = 32
_CLOCK_FACTOR = 4.0
_MAX_TIMEOUTS = 8
"""Timeouts in one call after which its other pairs get less time."""
_REDUCED_TIME = 0.2
_MAX_DEATHS = 2
"""Worker deaths after which a pair is `error`."""

_BUSY, _DONE, _LEFT, _NO_MEMORY, _DEAD, _OVERDUE = range(6)  # states of a task

_OUTCOMES = {
    EQUAL: CORRECT,
    UNEQUAL: WRONG,
    TOO_DEEP: Outcome(Verdict.error, "the comparison is nested too deeply for the math engine"),
    FAILED: Outcome(Verdict.error, "the math engine failed on this pair"),
}


@dataclass(slots=True)
class _Task:
    """A worker with a task: the indices of its undecided pairs, and the clock deadline of the first of them."""

    worker: Worker
    indices: deque[int]
    seconds: float
    deadline: float


@dataclass(slots=True)
class _Call:
    """The state of one call of `compare_many`."""

    pairs: Sequence[tuple[str, str]]
    seconds: float
    waiting: deque[int]
    outcomes: list[Outcome | None]
    deaths: dict[int, int] = field(default_factory=dict)
    timeouts: int = 0

    def time_limit(self) -> float:
        """Processor seconds for each of the next pairs."""
        return self.seconds if self.timeouts < _MAX_TIMEOUTS else self.seconds * _REDUCED_TIME


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
        self._size = workers
        self._timeout = timeout
        self._memory_mb = memory_mb
        self._policies = policies.model_dump(mode="json")
        self._idle: list[Worker] = []
        self._in_use = 0  # workers in use or starting
        self._free = threading.Condition()
        _pools.add(self)

    def compare_many(self, pairs: Sequence[tuple[str, str]]) -> list[Outcome]:
        """Return one outcome a pair, in order: correct, wrong, timeout, or error with its reason.

        Raises:
            VerifierError: No worker starts.
        """
        call = _Call(pairs, self._timeout, deque(range(len(pairs))), [None] * len(pairs))
        busy: dict[int, _Task] = {}  # by file descriptor
        with selectors.DefaultSelector() as selector:
            try:
                while call.waiting or busy:
                    while call.waiting and (worker := self._take(wait=not busy)) is not None:
                        self._assign(worker, call, busy, selector)
                    self._collect(call, busy, selector)
            finally:
                for task in busy.values():
                    self._drop(task.worker)
        return [outcome or Outcome(Verdict.error) for outcome in call.outcomes]

    def _assign(self, worker: Worker, call: _Call, busy: dict[int, _Task], selector: selectors.BaseSelector) -> None:
        """Send the next few pairs to a worker."""
        count = max(1, min(_CHUNK, len(call.waiting) // (2 * self._size)))
        indices = deque(call.waiting.popleft() for _ in range(min(count, len(call.waiting))))
        seconds = call.time_limit()
        try:
            worker.send({"seconds": seconds, "pairs": [call.pairs[index] for index in indices]})
        except WorkerGoneError:
            self._drop(worker)
            call.waiting.extendleft(reversed(indices))
            return
        descriptor = worker.connection.fileno()
        busy[descriptor] = _Task(worker, indices, seconds, time.monotonic() + seconds * _CLOCK_FACTOR)
        selector.register(descriptor, selectors.EVENT_READ)

    def _collect(self, call: _Call, busy: dict[int, _Task], selector: selectors.BaseSelector) -> None:
        """Wait until a worker reports or is overdue, and record the results."""
        if not busy:
            return
        now = time.monotonic()
        seconds = max(0.0, min(task.deadline for task in busy.values()) - now)
        readable = {key.fd for key, _ in selector.select(seconds)}
        # Workers overdue before this read and still silent: this thread itself may have been delayed.
        overdue = [fd for fd, task in busy.items() if task.deadline <= now and fd not in readable]
        for descriptor in [*readable, *overdue]:
            task = busy[descriptor]
            state = self._receive(task, call) if descriptor in readable else _OVERDUE
            if state == _BUSY:
                continue
            del busy[descriptor]
            selector.unregister(descriptor)
            if state == _DONE:
                self._give_back(task.worker)
                continue
            status = self._drop(task.worker)
            if state != _LEFT and task.indices:
                _settle(call, task, state, status, self._memory_mb)
            call.waiting.extendleft(reversed(task.indices))

    def _receive(self, task: _Task, call: _Call) -> int:
        """Record the verdicts that arrived, and return the state of the task."""
        codes = task.worker.receive()
        for byte in codes:
            code = bytes([byte])
            if code == LEAVING:
                return _LEFT
            if code == NO_MEMORY:
                return _NO_MEMORY
            if code not in _OUTCOMES or not task.indices:
                return _DEAD  # the worker no longer follows the protocol
            call.outcomes[task.indices.popleft()] = _OUTCOMES[code]
        task.deadline = time.monotonic() + task.seconds * _CLOCK_FACTOR
        if not codes:
            return _DEAD
        return _BUSY if task.indices else _DONE

    def _take(self, wait: bool) -> Worker | None:
        """Return an idle or new worker; when all are in use, wait for one, or return None if not `wait`."""
        with self._free:
            while True:
                if self._idle:
                    worker = self._idle.pop()
                    if worker.is_idle():
                        self._in_use += 1
                        return worker
                    worker.end()
                elif self._in_use < self._size:
                    self._in_use += 1
                    break
                elif not wait:
                    return None
                else:
                    self._free.wait()
        try:
            return Worker(self._policies, self._memory_mb)
        except BaseException:
            self._release()
            raise

    def _give_back(self, worker: Worker) -> None:
        with self._free:
            self._idle.append(worker)
        self._release()

    def _drop(self, worker: Worker) -> int:
        """End a worker in use and return its wait status."""
        try:
            return worker.end()
        finally:
            self._release()

    def _release(self) -> None:
        """Count one worker fewer in use, and wake a thread that waits for one."""
        with self._free:
            self._in_use -= 1
            self._free.notify()

    def close(self) -> None:
        """End the idle workers. A later comparison starts new ones."""
        with self._free:
            idle, self._idle = self._idle, []
        for worker in idle:
            worker.end()

    def forget(self) -> None:
        """Forget the workers, in a forked child: they belong to the parent."""
        self._idle, self._in_use, self._free = [], 0, threading.Condition()


def _settle(call: _Call, task: _Task, state: int, status: int, memory_mb: int) -> None:
    """Decide the pair that was under way when its worker died or was killed."""
    index = task.indices.popleft()
    by_signal = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    if state == _OVERDUE or (state == _DEAD and by_signal == TOO_SLOW):
        call.timeouts += 1
        spent = f"{task.seconds * _CLOCK_FACTOR:g} s on the clock" if state == _OVERDUE else f"{task.seconds:g} s"
        call.outcomes[index] = Outcome(Verdict.timeout, f"the comparison was stopped after {spent}")
        return
    call.deaths[index] = call.deaths.get(index, 0) + 1
    if call.deaths[index] < _MAX_DEATHS:
        task.indices.appendleft(index)
        return
    cause = f"needed more than {memory_mb} MiB" if state == _NO_MEMORY else "lost its process twice"
    if state == _DEAD and by_signal:
        cause += f" ({signal.Signals(by_signal).name})"
    call.outcomes[index] = Outcome(Verdict.error, f"the comparison {cause}")


_pools: weakref.WeakSet[ComparisonPool] = weakref.WeakSet()


def _forget_pools() -> None:
    for pool in list(_pools):
        pool.forget()


os.register_at_fork(after_in_child=_forget_pools)
