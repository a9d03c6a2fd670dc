"""A slot of a concurrency limit of the Prefect server, held while a stage computes: so many stages on GPUs at a time.

Prefect's own `concurrency` takes, renews and releases it. What is added: who waits says why, and can be told to stop;
and no stage ends because its server is away.
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

from rloop_core.config import Config, make_config
from rloop_core.errors import RESUMES, Stopped
from rloop_core.stages.job import StageJob, StageOutcome
from rloop_core.stages.on_machines import run_stage
from tasks.audience import is_watched

GPU_LIMIT = "rloop-gpu"
"""The limit of stages that compute on a GPU; `rloop deploy` makes it, inactive."""
LEASE_SECONDS = 300.0
"""A slot whose holder was killed is free again after so long. It outlives a server that is away for a minute."""
_REQUEST_SECONDS = 10.0
_ASK_SECONDS = 3.0
_NOTE_SECONDS = 300.0
_LOCKED, _TOO_MANY = 423, 422
_COMPUTING = ("explore", "rft", "evaluate")
Event = dict[str, Any]


def run_in_turn(
    job: StageJob, tell: Callable[[Event], None], *, should_stop: Callable[[], bool] = lambda: False, **limits: Any
) -> StageOutcome:
    """Run a stage in a process tree of its own, once it has the slot that it needs.

    Raises:
        RLoopError: As `run_stage`; `Stopped` too when it is told to stop before its turn.
    """
    config = make_config(job.config)
    name = limit_of(config, job.stage) if is_watched() else None
    if name is None:
        return run_stage(job, tell, should_stop=should_stop, **limits)

    def note(line: str) -> None:
        tell({"kind": "note", "note": line})

    with slot(name, f"{job.run}: {job.stage} {job.iteration}", note, should_stop):
        return run_stage(job, tell, should_stop=should_stop, **limits)


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
    name: str, holder: str, note: Callable[[str], None], should_stop: Callable[[], bool] = lambda: False
) -> Iterator[None]:
    """Hold a slot of a limit while the block runs, and wait for one first; a limit that does not exist holds nobody up.

    Args:
        name: Of the limit.
        holder: Who waits, for the error of one that is told to stop.
        note: Takes lines about waiting.
        should_stop: Asked while it waits.

    Raises:
        Stopped: It was told to stop before its turn.
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
    """A slot that is held, whose `__exit__` gives it back."""
    began = time.monotonic()
    told: dict[str, float] = {}
    while True:
        # One try, so that what it waits for can be said and the wait can be ended.
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
            why = _reason(error)
        else:
            break
        asked = time.monotonic()
        if why not in told or asked - told[why] > _NOTE_SECONDS:
            told[why] = asked
            since = f" for {(asked - began) / 60:.0f} min" if asked - began > 60 else ""
            note(f"waiting{since} for a slot of the concurrency limit {name}: {why}")
        while time.monotonic() - asked < _ASK_SECONDS:
            if should_stop():
                raise Stopped("was told to stop before its turn", field=holder, fix=RESUMES)
            time.sleep(0.2)
    if told:
        note(f"has a slot of {name} after {time.monotonic() - began:.0f} s")
    return held


def _reason(error: Exception) -> str:
    """Why there was no slot."""
    cause = error.__cause__
    if not isinstance(cause, httpx.HTTPStatusError):
        return f"the Prefect server does not answer ({type(cause).__name__})"
    code = cause.response.status_code
    return "other stages hold them all" if code in (_LOCKED, _TOO_MANY) else f"the Prefect server answers {code}"


def _has_gpu() -> bool:
    """Whether this machine shows a GPU, without loading torch for the answer."""
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES", "all") in ("", "-1")
    return not hidden and (any(Path("/dev").glob("nvidia[0-9]*")) or Path("/dev/kfd").exists())
