"""A run whose worker died goes on, and can still be cancelled: it asks the server itself, which nobody else would."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.context import FlowRunContext
from prefect.logging import get_run_logger
from prefect.states import Cancelled

from flows.stdio_relay import outlive_reader

_LOOK_SECONDS = 2.0
_ASK_SECONDS = 8.0


@contextmanager
def outlives_worker() -> Iterator[None]:
    """The block goes on when the worker that started this process is killed; a cancellation of its flow run ends it."""
    context = FlowRunContext.get()
    if context is None or context.flow_run is None or "PREFECT__FLOW_RUN_ID" not in os.environ:
        yield
        return
    outlive_reader()
    stop, logger = threading.Event(), get_run_logger()

    def watch(number: UUID, parent: int) -> None:
        while not stop.wait(_LOOK_SECONDS):
            if os.getppid() == parent:
                continue
            try:
                if _cancelled(number):
                    # At once: Prefect's engine takes a signal that no worker announced for a crash, and would say so.
                    # Supervisors and fork server end the stages.
                    os.kill(os.getpid(), signal.SIGKILL)
            except Exception as error:
                logger.debug("the server could not be asked whether to stop: %s", error)
            stop.wait(_ASK_SECONDS)

    threading.Thread(target=watch, args=(context.flow_run.id, os.getppid()), name="orphaned", daemon=True).start()
    try:
        yield
    finally:
        stop.set()


def _cancelled(number: UUID) -> bool:
    """Whether the flow run is to end; it is *Cancelled* then, since no worker is left who would say so."""
    with get_client(sync_client=True) as client:
        state = client.read_flow_run(number).state
        if state is None or not (state.is_cancelling() or state.is_cancelled()):
            return False
        message = "Its worker was gone; the run noticed by itself that it was cancelled."
        client.set_flow_run_state(number, Cancelled(message=message), force=True)
        return True
