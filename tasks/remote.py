"""Run stages on other work pools: each is a subflow run of the deployment `rloop-stage/<pool>`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import cache
from typing import Any
from uuid import UUID

import httpx
from prefect import get_client
from prefect.client.schemas.objects import FlowRun, State
from prefect.deployments import run_deployment
from prefect.events.filters import EventFilter, EventNameFilter, EventResourceFilter
from prefect.exceptions import ObjectNotFound
from prefect.runtime import flow_run
from prefect.states import Cancelling, Crashed

from rloop_core.config import Config
from rloop_core.errors import RESUMES, ConfigError, StageCrashed, Stopped, StoreError
from rloop_core.runtime import events
from rloop_core.runtime.events import OnEvent
from rloop_core.stages.remote import RemoteRequest, RemoteStage

FLOW = "rloop-stage"
UNTAKEN_SECONDS = 60.0
"""Seconds after which a run logs that no worker has taken a stage; again after twice as long, and so on."""
SILENT_SECONDS = 150.0
"""A flow run without a heartbeat for so long counts as dead; Prefect sends one every 30 s."""
ASK_SECONDS = 3.0
_BRIEF_SECONDS = 10.0
_TROUBLE = (httpx.HTTPError, OSError)


def compute_in_pool(
    pool: str,
    remote: RemoteStage,
    request: RemoteRequest,
    on_event: OnEvent,
    *,
    untaken_seconds: float | None,
    should_stop: Callable[[], bool],
) -> bool:
    """Have a worker of a pool compute a stage, and wait until it has ended. An exception here stops the stage.

    Args:
        pool: The work pool.
        remote: The stage.
        request: The request for its artifact.
        on_event: Called with notes.
        untaken_seconds: Give up if no worker takes it for so long; None waits without limit.
        should_stop: Asked several times a second; True stops it.

    Returns:
        False if the pool is the run's own, and nothing was done: the run would wait for its own slot.

    Raises:
        RLoopError: The stage's own error, as it raised it.
        ConfigError: The server has no such deployment.
        StageCrashed: The flow run ended without a result, went silent, or was never taken; a retry may help.
        Stopped: `should_stop` returned True.
    """
    if pool == _own_pool():
        return False
    remote.send(request)
    try:
        stage_run = _start(pool, remote)
        try:
            _wait(stage_run, pool, remote, on_event, untaken_seconds, should_stop)
        except BaseException:
            _cancel(stage_run)
            raise
    finally:
        try:
            remote.hasty(_BRIEF_SECONDS).withdraw()
        except StoreError:
            on_event(events.note("the request could not be withdrawn: `rloop gc` removes what is left of it"))
    return True


def check_pools(config: Config) -> None:
    """Check before anything is computed that the server has a deployment for each pool.

    Raises:
        ConfigError: There is none for a pool.
    """
    for stage, pool in config.placement.pools.items():
        if pool != _own_pool():
            try:
                with get_client(sync_client=True) as client:
                    client.read_deployment_by_name(f"{FLOW}/{pool}")
            except ObjectNotFound as error:
                raise _no_deployment(pool, stage) from error


def _start(pool: str, remote: RemoteStage) -> UUID:
    """Create the stage's flow run and return its id."""
    parameters: dict[str, Any] = {
        "store": remote.store.uri,
        "run": remote.run,
        "stage": remote.stage,
        "iteration": remote.iteration,
        "request": remote.name,
    }
    # Without the tag `rloop`, for which automations restart crashed runs: the run itself restarts its stages.
    tags = [tag for tag in flow_run.tags or () if tag != "rloop"]
    try:
        stage_run: FlowRun = run_deployment(f"{FLOW}/{pool}", parameters=parameters, timeout=0, tags=tags)  # type: ignore[assignment]
    except ObjectNotFound as error:
        raise _no_deployment(pool, remote.stage) from error
    except _TROUBLE as error:
        raise StageCrashed(f"the Prefect server does not answer: {error}", field=f"pool {pool}") from error
    return stage_run.id


def _wait(
    stage_run: UUID,
    pool: str,
    remote: RemoteStage,
    on_event: OnEvent,
    untaken_seconds: float | None,
    should_stop: Callable[[], bool],
) -> None:
    """Wait until the flow run has completed; see `compute_in_pool`."""
    field = f"{remote.run}: {remote.stage} in pool {pool}"
    waited, next_note = 0.0, UNTAKEN_SECONDS
    silent, last_heartbeat = 0.0, None
    looked = time.monotonic()
    while True:
        passed = time.monotonic() - looked
        state, heartbeat = _look(stage_run)
        now = looked = time.monotonic()  # the time that the server takes to answer does not count as silence
        if state is None:
            pass
        elif state.is_final():
            return _end(state, remote, field)
        elif _is_untaken(state):
            waited += passed
            if waited > next_note:
                start = f"prefect worker start --pool {pool}"
                note = f"no worker of pool {pool} has taken it for {next_note:.0f} s (start one: {start})"
                on_event(events.note(note))
                next_note *= 2
            if untaken_seconds and waited > untaken_seconds:
                what = f"no worker has taken it for {untaken_seconds:.0f} s (placement.stage_stall_minutes)"
                raise StageCrashed(what, field=field, fix=f"start a worker of pool {pool}, and the run again")
        elif heartbeat:  # a pool may have disabled them
            silent = silent + passed if heartbeat == last_heartbeat else 0.0
            last_heartbeat = heartbeat
            if silent > SILENT_SECONDS:
                what = f"its flow run has sent no heartbeat for {SILENT_SECONDS:.0f} s"
                raise StageCrashed(what, field=field, fix=RESUMES)
        while time.monotonic() - now < ASK_SECONDS:
            if should_stop():
                raise Stopped("was stopped", field=field, fix=RESUMES)
            time.sleep(0.2)


def _end(state: State[Any], remote: RemoteStage, field: str) -> None:
    """Raise the stage's own error, or that it has none, unless the flow run completed."""
    if state.is_completed():
        return
    if error := remote.error():
        raise error
    how = f"{state.name}: {state.message}" if state.message else state.name
    raise StageCrashed(f"ended without a result ({how})", field=field, fix=RESUMES)


def _look(stage_run: UUID) -> tuple[State[Any] | None, UUID | None]:
    """Return the flow run's state, None if the server does not answer, and the last heartbeat of a running one."""
    heartbeats = EventFilter(
        event=EventNameFilter(name=["prefect.flow-run.heartbeat"]),
        resource=EventResourceFilter(id=[f"prefect.flow-run.{stage_run}"]),
    )
    try:
        with get_client(sync_client=True, httpx_settings={"timeout": _BRIEF_SECONDS}) as client:
            state = client.read_flow_run(stage_run).state
            if state is None or state.is_final() or _is_untaken(state):
                return state, None
            latest = client.read_events(heartbeats, limit=1).events
    except ObjectNotFound:
        return Crashed(message="it was deleted"), None
    except _TROUBLE:
        return None, None
    return state, latest[0].id if latest else None


def _is_untaken(state: State[Any]) -> bool:
    return state.is_scheduled() or state.is_pending()


def _cancel(stage_run: UUID) -> None:
    """Cancel the flow run. If that fails, it ends by itself, because its request is gone."""
    try:
        with get_client(sync_client=True) as client:
            state = client.read_flow_run(stage_run).state
            if state is None or not state.is_final():
                client.set_flow_run_state(stage_run, Cancelling(message="its run no longer waits for it"))
    except (*_TROUBLE, ObjectNotFound):
        return


def _no_deployment(pool: str, stage: str) -> ConfigError:
    what = f"the Prefect server has no deployment {FLOW}/{pool}"
    fix = "rloop deploy makes those of its pools; or leave the stage out, and the run computes it itself"
    return ConfigError(what, field=f"placement.pools.{stage}", fix=fix)


@cache
def _own_pool() -> str | None:
    """Return the work pool whose worker started this process; None if no worker did.

    Raises:
        StageCrashed: The server does not answer; a retry may help.
    """
    flow_run_id = os.environ.get("PREFECT__FLOW_RUN_ID")
    if not flow_run_id:
        return None
    try:
        with get_client(sync_client=True) as client:
            return client.read_flow_run(UUID(flow_run_id)).work_pool_name
    except _TROUBLE as error:
        raise StageCrashed(f"the Prefect server does not answer: {error}", field="placement.pools") from error
