"""Limit how many stages compute on GPUs at a time: each holds a slot of a concurrency limit of the Prefect server.

Prefect's `concurrency` takes, renews and releases the slot. This module adds that a waiting stage logs why it waits and
can be stopped, and that no stage ends because the server is away.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import httpx
from prefect.concurrency.asyncio import ConcurrencySlotAcquisitionError
from prefect.concurrency.sync import concurrency

from rloop_core.config import Config
from rloop_core.errors import RESUMES, Stopped
from rloop_core.runtime import events
from rloop_core.runtime.events import OnEvent
from rloop_core.stages.job import StageJob, StageOutcome
from rloop_core.stages.on_machines import run_stage

GPU_LIMIT = "rloop-gpu"
"""The limit of stages that compute on a GPU; `rloop deploy` creates it, inactive."""
LEASE_SECONDS = 300.0
"""The slot of a killed holder is free again after so long; longer than a server may be away."""
_REQUEST_SECONDS = 10.0
_ASK_SECONDS = 3.0
_NOTE_SECONDS = 300.0
_LOCKED, _TOO_MANY = 423, 422
_COMPUTING = ("explore", "rft", "evaluate")


def run_within_limit(
    job: StageJob, on_event: OnEvent, *, should_stop: Callable[[], bool] = lambda: False, **limits: Any
) -> StageOutcome:
    """Run a stage as `run_stage` does, once it has the slot that it needs.

    Raises:
        RLoopError: As `run_stage`; also `Stopped` if `should_stop` returns True while it waits.
    """
    name = limit_of(job.config, job.stage)
    if name is None:
        return run_stage(job, on_event, should_stop=should_stop, **limits)
    with concurrency_slot(name, f"{job.run}: {job.stage} {job.iteration}", events.as_notes(on_event), should_stop):
        return run_stage(job, on_event, should_stop=should_stop, **limits)


def limit_of(config: Config, stage: str) -> str | None:
    """Return the limit of which a stage needs a slot: the one that placement names, else `GPU_LIMIT` on a GPU."""
    computes = stage in _COMPUTING or (stage == "harvest" and config.harvest.snapshot_samples > 0)
    if not computes:
        return None
    placement = config.placement
    if placement.concurrency_limit is not None:
        return placement.concurrency_limit
    return GPU_LIMIT if on_gpu(config) else None


def on_gpu(config: Config) -> bool:
    """Return True if a run's heavy stages compute on GPUs, as far as this machine shows."""
    device = config.placement.device
    return device == "cuda" or (device == "auto" and _has_gpu())


@contextmanager
def concurrency_slot(
    name: str, holder: str, note: Callable[[str], None], should_stop: Callable[[], bool] = lambda: False
) -> Iterator[None]:
    """Wait for a slot of a limit, and hold it while the block runs. A limit that does not exist admits everybody.

    Args:
        name: The limit's name.
        holder: The waiting stage, for the error.
        note: Called with lines about waiting.
        should_stop: Asked while waiting.

    Raises:
        Stopped: `should_stop` returned True before there was a slot.
    """
    held = _wait_for(name, holder, note, should_stop)
    try:
        yield
    finally:
        try:
            held.__exit__(None, None, None)
        except httpx.HTTPError as error:
            note(f"could not give its slot of {name} back, which is free within {LEASE_SECONDS:.0f} s: {error}")


def _wait_for(
    name: str, holder: str, note: Callable[[str], None], should_stop: Callable[[], bool]
) -> AbstractContextManager[None]:
    """Return a slot that is held; its `__exit__` releases it."""
    began = time.monotonic()
    noted: dict[str, float] = {}
    while True:
        # One try only, so that the reason can be logged and the wait can be stopped.
        held = concurrency(
            name,
            timeout_seconds=_REQUEST_SECONDS,
            max_retries=0,
            lease_duration=LEASE_SECONDS,
            raise_on_lease_renewal_failure=False,
        )
        try:
            held.__enter__()
        except (ConcurrencySlotAcquisitionError, TimeoutError) as error:
            reason = _reason(error)
        else:
            break
        asked = time.monotonic()
        if reason not in noted or asked - noted[reason] > _NOTE_SECONDS:
            noted[reason] = asked
            since = f" for {(asked - began) / 60:.0f} min" if asked - began > 60 else ""
            note(f"waiting{since} for a slot of the concurrency limit {name}: {reason}")
        while time.monotonic() - asked < _ASK_SECONDS:
            if should_stop():
                raise Stopped("was stopped before it had a slot", field=holder, fix=RESUMES)
            time.sleep(0.2)
    if noted:
        note(f"has a slot of {name} after {time.monotonic() - began:.0f} s")
    return held


def _reason(error: Exception) -> str:
    """Return why there was no slot."""
    cause = error.__cause__
    if not isinstance(cause, httpx.HTTPStatusError):
        return f"the Prefect server does not answer ({type(cause).__name__})"
    code = cause.response.status_code
    return "other stages hold them all" if code in (_LOCKED, _TOO_MANY) else f"the Prefect server answers {code}"


def _has_gpu() -> bool:
    """Return True if this machine has a visible GPU, without loading torch."""
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES", "all") in ("", "-1")
    return not hidden and (any(Path("/dev").glob("nvidia[0-9]*")) or Path("/dev/kfd").exists())
