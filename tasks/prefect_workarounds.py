"""Workarounds for Prefect 3.7: each says what Prefect does, and may go when Prefect no longer does it.

- `UntaggedTask`: a task run with tags asks the server for concurrency slots once, and fails without an answer.
- `survive_worker`: a flow run ends with its worker, and without one it cannot be cancelled.
- `OneLineErrors`: an expected error fills a run's log with tracebacks, its own sentence at the end.

Smaller ones stand where they apply: heartbeats and log handlers in `flows/embedded`, images in `tasks/artifacts`.
"""

import atexit
import contextlib
import logging
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any
from uuid import UUID

from prefect import Task
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client
from prefect.context import FlowRunContext, TagsContext
from prefect.logging import get_run_logger
from prefect.states import Cancelled

from rloop_core.errors import RLoopError, cause_of
from rloop_core.printable import printable_line

_PARENT_SECONDS = 2.0
_ASK_SECONDS = 8.0
_CHUNK = 1 << 16
_DRAIN_SECONDS = 10.0


class UntaggedTask(Task[..., Any]):
    """A task whose runs have no tags, not even those of their flow run.

    For the tags of a task run Prefect asks its server for concurrency slots, once: that costs an embedded server up to
    two seconds, and fails the run if the server is away at that moment.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run it now."""
        with TagsContext(current_tags=set()):
            return super().__call__(*args, **kwargs)

    def submit(self, *args: Any, **kwargs: Any) -> Any:
        """Run it concurrently with the flow."""
        with TagsContext(current_tags=set()):
            return super().submit(*args, **kwargs)


def untagged_task(**options: Any) -> Callable[[Callable[..., Any]], UntaggedTask]:
    """Return a decorator that makes such a task. Prefect keeps and caches no results, since the store has them."""
    return partial(UntaggedTask, cache_policy=NO_CACHE, persist_result=False, **options)


class OneLineErrors(logging.Filter):
    """Makes one ERROR line of the traceback that Prefect logs for an RLoopError, once for all flows that it ends."""

    def __init__(self) -> None:
        super().__init__()
        self._said: RLoopError | None = None

    def filter(self, record: logging.LogRecord) -> bool:
        """Shorten the record; False for an error that is in the log already."""
        error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
        cause = cause_of(error) if error else None
        if cause is None:
            return True
        record.msg, record.args, record.exc_info = printable_line(str(cause), 1000), (), None
        said, self._said = self._said, cause
        return said is not cause


_one_line = OneLineErrors()
for _name in ("prefect.flow_runs", "prefect.task_runs"):
    logging.getLogger(_name).addFilter(_one_line)


@contextmanager
def survive_worker() -> Iterator[None]:
    """Keep the block running if the worker that started this process is killed; a cancellation still ends it.

    Without its worker the process asks the server itself whether its flow run was cancelled.
    """
    context = FlowRunContext.get()
    if context is None or context.flow_run is None or "PREFECT__FLOW_RUN_ID" not in os.environ:
        yield
        return
    relay_output()
    stop, logger = threading.Event(), get_run_logger()

    def watch(flow_run: UUID, worker: int) -> None:
        while not stop.wait(_PARENT_SECONDS):
            if os.getppid() == worker:
                continue
            try:
                if _is_cancelled(flow_run):
                    # SIGKILL: Prefect's engine would report SIGTERM without a worker as a crash. The supervisors and
                    # the fork server end the stages.
                    os.kill(os.getpid(), signal.SIGKILL)
            except Exception as error:
                logger.debug("the server could not be asked whether to stop: %s", error)
            stop.wait(_ASK_SECONDS)

    threading.Thread(target=watch, args=(context.flow_run.id, os.getppid()), name="rloop-worker", daemon=True).start()
    try:
        yield
    finally:
        stop.set()


def _is_cancelled(flow_run: UUID) -> bool:
    """Return True if the flow run was cancelled. Its state becomes *Cancelled*, which its worker would have set."""
    with get_client(sync_client=True) as client:
        state = client.read_flow_run(flow_run).state
        if state is None or not (state.is_cancelling() or state.is_cancelled()):
            return False
        message = "Its worker had ended; its process saw the cancellation itself."
        client.set_flow_run_state(flow_run, Cancelled(message=message), force=True)
        return True


@cache
def relay_output() -> None:
    """Redirect stdout and stderr of this process and its children into its own pipes, which never break.

    They were pipes to the worker: once it is gone a write fails, and rich, which prints Prefect's log lines, ends the
    process on that error.
    """
    for relay in [_Relay(1), _Relay(2)]:
        relay.start()
        atexit.register(relay.drain)


class _Relay(threading.Thread):
    """Copies what is written to a descriptor, 1 or 2, to its former target; drops it once the target is gone."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(name=f"rloop-output-{descriptor}", daemon=True)
        sys.stdout.flush()
        sys.stderr.flush()
        self._target = os.dup(descriptor)  # children do not inherit it, and cannot keep the worker waiting
        self._source, sink = os.pipe()
        os.dup2(sink, descriptor)
        os.close(sink)
        self._copying = threading.Lock()

    def run(self) -> None:
        """Copy until the process ends."""
        while True:
            select.select([self._source], [], [])
            with self._copying:
                chunk = os.read(self._source, _CHUNK)
                with contextlib.suppress(OSError):
                    while chunk:
                        chunk = chunk[os.write(self._target, chunk) :]

    def drain(self) -> None:
        """Wait until the last lines are copied; for seconds only, since the reader may be stopped."""
        for stream in (sys.stdout, sys.stderr):  # Python itself flushes them after its exit handlers
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        deadline = time.monotonic() + _DRAIN_SECONDS
        while (left := deadline - time.monotonic()) > 0 and self._copying.acquire(timeout=left):
            waiting = select.select([self._source], [], [], 0)[0]
            self._copying.release()
            if not waiting:
                return
            time.sleep(0.01)
