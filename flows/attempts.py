"""Correct what the Prefect server shows of earlier attempts at a run: a killed process leaves states *Running*.

This changes only what the UI shows; the store decides what is done. The caller holds the run's lease, so no other
process works on the run, whatever the server says.
"""

from typing import Any

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowFilter, FlowRunFilter, TaskRunFilter
from prefect.client.schemas.objects import FlowRun, State
from prefect.client.schemas.sorting import FlowRunSort
from prefect.context import FlowRunContext
from prefect.logging import get_run_logger
from prefect.states import Cancelled, Crashed

from flows.run_form import config_from
from rloop_core.config import Config, as_vanilla
from rloop_core.errors import RLoopError
from tasks.session import has_ui

_UNENDED = ["RUNNING", "PENDING", "SCHEDULED", "PAUSED", "CANCELLING"]
_INTERRUPTED = ["RUNNING", "CANCELLING", "CRASHED", "FAILED", "CANCELLED"]
_MOST_ATTEMPTS = 20  # the latest; they corrected the older ones


def end_earlier_attempts(config: Config) -> None:
    """Set the open states of earlier attempts at this run to *Crashed* or *Cancelled*. Never fails."""
    context = FlowRunContext.get()
    if context is None or context.flow is None or not isinstance(context.flow_run, FlowRun) or not has_ui():
        return
    try:
        with get_client(sync_client=True) as client:
            ended = _end(client, context.flow.name, context.flow_run, config)
    except Exception as error:
        get_run_logger().warning("the states of earlier attempts on the server stay as they are: %s", error)
        return
    if ended:
        get_run_logger().info("%d runs of earlier attempts at this run had no final state; they are Crashed now", ended)


def _end(client: SyncPrefectClient, flow: str, current: FlowRun, config: Config) -> int:
    """End the unended task runs and subflow runs of all attempts, and the earlier attempts; return how many of both."""
    key = config.placement.store, config.name
    earlier = [run for run in _interrupted(client, flow, current) if _key_of(run, config) == key]
    if current.run_count < 2 and not earlier:
        return 0
    attempts = [current.id, *(run.id for run in earlier)]
    subflows = client.read_flow_runs(
        flow_run_filter=FlowRunFilter.model_validate({"parent_flow_run_id": {"any_": attempts}})
    )
    tasks = client.read_task_runs(
        flow_run_filter=FlowRunFilter.model_validate({"id": {"any_": [*attempts, *(run.id for run in subflows)]}}),
        task_run_filter=TaskRunFilter.model_validate({"state": {"type": {"any_": _UNENDED}, "name": None}}),
    )
    for task in tasks:
        client.set_task_run_state(task.id, _ended(current, task.state), force=True)
    unended = [run for run in subflows if run.state is None or not run.state.is_final()]
    for run in unended:
        client.set_flow_run_state(run.id, _ended(current, run.state), force=True)
    worked = {task.flow_run_id for task in tasks}
    for run in earlier:
        # An attempt without tasks never held the lease: it may be about to fail because it cannot get it.
        if run.id in worked and run.state is not None and not run.state.is_final():
            client.set_flow_run_state(run.id, _ended(current, run.state, "Superseded"), force=True)
    return len(tasks) + len(unended)


def _interrupted(client: SyncPrefectClient, flow: str, current: FlowRun) -> list[FlowRun]:
    """Return the other runs of this flow and name that did not complete."""
    runs = client.read_flow_runs(
        flow_filter=FlowFilter.model_validate({"name": {"any_": [flow]}}),
        flow_run_filter=FlowRunFilter.model_validate(
            {"name": {"any_": [current.name]}, "state": {"type": {"any_": _INTERRUPTED}}}
        ),
        sort=FlowRunSort.START_TIME_DESC,
        limit=_MOST_ATTEMPTS,
    )
    return [run for run in runs if run.id != current.id]


def _key_of(run: FlowRun, current: Config) -> tuple[str, str] | None:
    """Return store and name of a flow run's config; None if its parameters give none."""
    form: dict[str, Any] = dict(run.parameters)
    try:
        if isinstance(form.get("config"), dict):
            form["config"] = Config.model_validate(form["config"])
        config = config_from(**form, start=run.expected_start_time)
    except (RLoopError, TypeError, ValueError):
        return None
    config = as_vanilla(config) if current.arm == "vanilla-rl" else config
    return config.placement.store, config.name


def _ended(current: FlowRun, state: State | None, name: str | None = None) -> State:
    message = (
        f"Its process ended without reporting a state; {current.name} was resumed in attempt {current.run_count} of "
        f"{str(current.id)[:8]}."
    )
    if state is not None and state.is_cancelling():
        return Cancelled(message=message)
    return Crashed(name=name, message=message) if name else Crashed(message=message)
