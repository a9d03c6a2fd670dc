"""Correct what the Prefect server shows of earlier attempts at a run: a killed process leaves states *Running*.

This changes only what the UI shows; the store decides what is done. The caller holds the run's lease, so no other
process works on the run, whatever the server says.
"""

from collections.abc import Iterator
from typing import Any
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import (
    FlowFilter,
    FlowFilterName,
    FlowRunFilter,
    FlowRunFilterId,
    FlowRunFilterName,
    FlowRunFilterParentFlowRunId,
    FlowRunFilterState,
    FlowRunFilterStateType,
    TaskRunFilter,
    TaskRunFilterState,
    TaskRunFilterStateType,
)
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.client.schemas.sorting import FlowRunSort
from prefect.context import FlowRunContext
from prefect.logging import get_run_logger
from prefect.states import Cancelled, Crashed

from flows.run_form import config_from
from rloop_core.config import Config, as_vanilla
from rloop_core.errors import RLoopError
from tasks.session import has_ui

_UNENDED = [StateType.RUNNING, StateType.PENDING, StateType.SCHEDULED, StateType.PAUSED, StateType.CANCELLING]
_INTERRUPTED = [StateType.RUNNING, StateType.CANCELLING, StateType.CRASHED, StateType.FAILED, StateType.CANCELLED]
_MOST = 20  # recent attempts; they corrected older ones


def end_earlier_attempts(config: Config) -> None:
    """Set the states that earlier attempts at this run left unended to *Crashed* or *Cancelled*. Never fails."""
    context = FlowRunContext.get()
    if context is None or not isinstance(context.flow_run, FlowRun) or not has_ui():
        return
    try:
        with get_client(sync_client=True) as client:
            ended = _end(client, context.flow_run, config)
    except Exception as error:
        get_run_logger().warning("what earlier attempts left on the server stays as it is: %s", error)
        return
    if ended:
        get_run_logger().info("earlier attempts at this run had left %d runs unended; they are Crashed now", ended)


def _end(client: SyncPrefectClient, mine: FlowRun, config: Config) -> int:
    wanted = config.placement.store, config.name
    others = [run for run in _earlier(client, mine) if run.id != mine.id and _config_of(run, config) == wanted]
    if mine.run_count < 2 and not others:
        return 0
    parents = [mine.id, *(run.id for run in others)]
    below = FlowRunFilter(parent_flow_run_id=FlowRunFilterParentFlowRunId(any_=parents))
    inner = client.read_flow_runs(flow_run_filter=below)
    tasks = client.read_task_runs(
        flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[*parents, *(run.id for run in inner)])),
        task_run_filter=TaskRunFilter(state=TaskRunFilterState(type=TaskRunFilterStateType(any_=_UNENDED), name=None)),
    )
    worked = {task.flow_run_id for task in tasks}
    for task in tasks:
        client.set_task_run_state(task.id, _ended_state(mine, task.state), force=True)
    unended = [run for run in inner if run.state is None or not run.state.is_final()]
    for run in unended:
        client.set_flow_run_state(run.id, _ended_state(mine, run.state), force=True)
    for run in others:
        # An attempt without tasks never held the lease: it may be about to fail for the lack of it.
        if run.id in worked and run.state is not None and not run.state.is_final():
            client.set_flow_run_state(run.id, _ended_state(mine, run.state, "Superseded"), force=True)
    return len(tasks) + len(unended)


def _earlier(client: SyncPrefectClient, mine: FlowRun) -> Iterator[FlowRun]:
    """Yield the runs of this flow and name that did not complete."""
    flow = FlowRunContext.get()
    assert flow is not None and flow.flow is not None
    yield from client.read_flow_runs(
        flow_filter=FlowFilter(name=FlowFilterName(any_=[flow.flow.name])),
        flow_run_filter=FlowRunFilter(
            name=FlowRunFilterName(any_=[mine.name]),
            state=FlowRunFilterState(type=FlowRunFilterStateType(any_=_INTERRUPTED)),
        ),
        sort=FlowRunSort.START_TIME_DESC,
        limit=_MOST,
    )


def _config_of(run: FlowRun, mine: Config) -> tuple[str, str] | None:
    """Return store and name of a flow run's config; None if its parameters give none."""
    try:
        config = config_from(**_form(run.parameters))
    except (RLoopError, TypeError, ValueError):
        return None
    config = as_vanilla(config) if mine.arm == "vanilla-rl" else config
    return config.placement.store, config.name


def _form(parameters: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters for `config_from`: a plain config becomes a Config."""
    config = parameters.get("config")
    return {**parameters, "config": Config.model_validate(config)} if isinstance(config, dict) else parameters


def _ended_state(mine: FlowRun, state: State | None, name: str | None = None) -> State:
    message = f"Its process ended without a word; {mine.name} went on in attempt {mine.run_count} of {_short(mine.id)}."
    if state is not None and state.is_cancelling():
        return Cancelled(message=message)
    return Crashed(name=name, message=message) if name else Crashed(message=message)


def _short(number: UUID) -> str:
    return str(number)[:8]
