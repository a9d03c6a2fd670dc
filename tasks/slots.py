"""A slot of a named limit of the Prefect server, held while a stage computes: so many stages on GPUs at a time.

A run never dies of it. A slot that cannot be kept, because the server restarted or is gone, is taken again when it can
be; the stage goes on meanwhile.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import copy_context
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.logging import get_run_logger
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings

from rloop_core.config import Config, make_config
from rloop_core.errors import RESUMES, StageError
from rloop_core.stages.job import StageJob, StageOutcome
from rloop_core.stages.process import run_in_process
from tasks.audience import is_watched

GPU_LIMIT = "rloop-gpu"
"""The limit of stages that compute on a GPU; `rloop deploy` makes it, inactive."""
LEASE_SECONDS = 120.0
"""A slot whose holder was killed is free again after so long."""
_RENEW_SECONDS = 20.0
_ASK_SECONDS = 3.0
_NOTE_SECONDS = 300.0
_REQUEST_SECONDS = 10.0
_LOCKED, _GONE, _TOO_MANY = 423, 410, 422
_COMPUTING = ("explore", "rft", "evaluate")
Event = dict[str, Any]


def run_in_turn(
    job: StageJob, tell: Callable[[Event], None], *, should_stop: Callable[[], bool] = lambda: False, **limits: Any
) -> StageOutcome:
    """Run a stage in a process tree of its own, once it has the slot that it needs.

    Raises:
        RLoopError: As `run_in_process`; a StageError too when it is told to stop before its turn.
    """
    config = make_config(job.config)
    name = limit_of(config, job.stage) if is_watched() else None
    if name is None:
        return run_in_process(job, tell, should_stop=should_stop, **limits)

    def note(line: str) -> None:
        tell({"kind": "note", "note": line})

    with slot(name, f"{job.run}: {job.stage} {job.iteration}", note, get_run_logger().warning, should_stop):
        return run_in_process(job, tell, should_stop=should_stop, **limits)


def limit_of(config: Config, stage: str) -> str | None:
    """The limit of which a stage needs a slot; None for what does not compute, or not on a GPU, unless one is named."""
    computes = stage in _COMPUTING or (stage == "harvest" and config.harvest.snapshot_samples > 0)
    if not computes:
        return None
    placement = config.placement
    if placement.concurrency_limit is not None:
        return placement.concurrency_limit
    return GPU_LIMIT if on_gpu(config) else None


def on_gpu(config: Config) -> bool:
    """Whether a run's heavy stages compute on GPUs, as far as this machine can tell."""
    device = config.placement.device
    return device == "cuda" or (device == "auto" and _has_gpu())


@contextmanager
def slot(
    name: str,
    holder: str,
    note: Callable[[str], None],
    warn: Callable[[str], None],
    should_stop: Callable[[], bool] = lambda: False,
) -> Iterator[None]:
    """Hold a slot of a limit while the block runs, and wait for one first; a limit that does not exist holds nobody up.

    Args:
        name: Of the limit.
        holder: Who waits, for the error of one that is told to stop.
        note: Takes lines about waiting.
        warn: Takes a line about a slot that was lost, from another thread.
        should_stop: Asked while it waits.

    Raises:
        StageError: It was told to stop before its turn.
    """
    with get_client(sync_client=True, httpx_settings={"timeout": _REQUEST_SECONDS}) as client:
        held = _Slot(client, name)
        with _asking_once():
            _wait_for(held, holder, note, should_stop)
            keep = copy_context()
        keeper = threading.Thread(target=keep.run, args=(held.keep, warn), name="rloop-slot", daemon=True)
        keeper.start()
        try:
            yield
        finally:
            held.stop()
            keeper.join(_REQUEST_SECONDS)
            with _asking_once():
                held.release()


def _asking_once() -> AbstractContextManager[object]:
    """The client gives up after one try: the loops here ask again, and look in between whether they are to stop."""
    return temporary_settings(updates={PREFECT_CLIENT_MAX_RETRIES: 0})


class _Slot:
    """A slot, or the wish for one.

    Args:
        client: Talks to the server; used by one thread at a time.
        name: Of the limit.
    """

    def __init__(self, client: SyncPrefectClient, name: str) -> None:
        self._client = client
        self.name = name
        self._lease: UUID | None = None
        self._stop = threading.Event()

    def take(self) -> str | None:
        """Why the stage has to wait; None once it has a slot, or where there is no such limit, or it is off."""
        try:
            answer = self._client.increment_concurrency_slots_with_lease([self.name], 1, "concurrency", LEASE_SECONDS)
        except httpx.HTTPStatusError as error:
            code = error.response.status_code
            if code in (_LOCKED, _TOO_MANY):
                return "other stages hold them all"
            return f"the Prefect server answers {code}"
        except httpx.HTTPError as error:
            return f"the Prefect server does not answer ({type(error).__name__})"
        self._lease = UUID(answer.json()["lease_id"])
        return None

    def keep(self, warn: Callable[[str], None]) -> None:
        """Renew the lease until `stop`; one that is lost is taken anew when there is a slot."""
        told = False
        while not self._stop.wait(_RENEW_SECONDS):
            try:
                if self._lease is not None:
                    self._client.renew_concurrency_lease(self._lease, LEASE_SECONDS)
            except httpx.HTTPStatusError as error:
                if error.response.status_code == _GONE:
                    self._lease = None
            except httpx.HTTPError:
                continue  # the server is away; the lease may outlive that
            if self._lease is None and self.take() and not told:
                told = True
                warn(f"the server has lost this stage's slot of {self.name}: it goes on without one for the time being")

    def stop(self) -> None:
        """End `keep`."""
        self._stop.set()

    def release(self) -> None:
        """Give the slot back; one that cannot be is free when its lease ends."""
        if self._lease is None:
            return
        with suppress(httpx.HTTPError):
            self._client.release_concurrency_slots_with_lease(self._lease)


def _wait_for(held: _Slot, holder: str, note: Callable[[str], None], should_stop: Callable[[], bool]) -> None:
    began = time.monotonic()
    noted = 0.0
    said: set[str] = set()
    while why := held.take():
        waited = time.monotonic() - began
        if why not in said or waited - noted > _NOTE_SECONDS:
            said = {why} if waited - noted > _NOTE_SECONDS else {*said, why}
            noted = waited
            since = f" for {waited / 60:.0f} min" if waited > 60 else ""
            note(f"waiting{since} for a slot of the concurrency limit {held.name}: {why}")
        asked = time.monotonic()
        while time.monotonic() - asked < _ASK_SECONDS:
            if should_stop():
                raise StageError("was told to stop before its turn", field=holder, fix=RESUMES)
            time.sleep(0.2)
    if said:
        note(f"has a slot of {held.name} after {time.monotonic() - began:.0f} s")


def _has_gpu() -> bool:
    """Whether this machine shows a GPU, without loading torch for the answer."""
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES", "all") in ("", "-1")
    return not hidden and (any(Path("/dev").glob("nvidia[0-9]*")) or Path("/dev/kfd").exists())
