"""Stages on other work pools: each a flow run of the deployment `rloop-stage/<pool>`, in the UI below the run's own."""

from __future__ import annotations

import os
from functools import cache
from typing import Any
from uuid import UUID

import httpx
from prefect import get_client
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.deployments import run_deployment
from prefect.exceptions import ObjectNotFound
from prefect.runtime import flow_run
from prefect.states import Cancelling

from rloop_core.config import Config
from rloop_core.errors import ConfigError, StageCrashed
from rloop_core.stages.elsewhere import Pools, Sent
from rloop_core.stages.errand import Errand

FLOW = "rloop-stage"
_ENDED = {StateType.COMPLETED, StateType.FAILED, StateType.CRASHED, StateType.CANCELLED}
_TROUBLE = (httpx.HTTPError, OSError)


class SentRun(Sent):
    """A stage as a flow run.

    Args:
        number: The flow run's id.
    """

    def __init__(self, number: UUID) -> None:
        self._number = number

    def ended(self) -> str | None:
        """Name and message of its final state; None while it has none, or the server does not answer."""
        try:
            with get_client(sync_client=True) as client:
                state = client.read_flow_run(self._number).state
        except ObjectNotFound:
            return "its flow run was deleted"
        except _TROUBLE:
            return None
        if state is None or state.type not in _ENDED:
            return None
        return f"{state.name}: {state.message}" if state.message else str(state.name)

    def end(self) -> None:
        """Cancel it. If that fails, its order is gone all the same, and it ends by itself."""
        try:
            with get_client(sync_client=True) as client:
                state = client.read_flow_run(self._number).state
                if state is None or state.type not in _ENDED:
                    client.set_flow_run_state(self._number, Cancelling(message="its run no longer waits for it"))
        except (*_TROUBLE, ObjectNotFound):
            return


class PrefectPools(Pools):
    """The work pools of the Prefect server that this process talks to."""

    def is_here(self, pool: str) -> bool:
        """Whether the run's own flow run came out of this pool; sending it there would wait for the run's own slot."""
        return pool == _own_pool()

    def send(self, pool: str, errand: Errand) -> SentRun:
        """Create the stage's flow run.

        Raises:
            ConfigError: The server has no such deployment.
            StageCrashed: The server does not answer; another try may help.
        """
        parameters: dict[str, Any] = {
            "store": errand.store.uri,
            "run": errand.run,
            "stage": errand.stage,
            "iteration": errand.iteration,
            "errand": errand.name,
        }
        # Not `rloop`: what the server does by itself about crashed runs is for runs, and a run starts its stages again.
        tags = [tag for tag in flow_run.tags or () if tag != "rloop"]
        try:
            sent: FlowRun = run_deployment(f"{FLOW}/{pool}", parameters=parameters, timeout=0, tags=tags)  # type: ignore[assignment]
        except ObjectNotFound as error:
            raise _no_deployment(pool, errand.stage) from error
        except _TROUBLE as error:
            raise StageCrashed(f"the Prefect server does not answer: {error}", field=f"pool {pool}") from error
        return SentRun(sent.id)


def check_pools(config: Config) -> None:
    """Refuse a pool that the server has no deployment for, before anything is computed.

    Raises:
        ConfigError: There is none.
    """
    for stage, pool in config.placement.pools.items():
        if pool != _own_pool():
            try:
                with get_client(sync_client=True) as client:
                    client.read_deployment_by_name(f"{FLOW}/{pool}")
            except ObjectNotFound as error:
                raise _no_deployment(pool, stage) from error


def _no_deployment(pool: str, stage: str) -> ConfigError:
    what = f"the Prefect server has no deployment {FLOW}/{pool}"
    fix = "rloop deploy makes those of its own pools; or leave the stage out, and it is computed with the run"
    return ConfigError(what, field=f"placement.pools.{stage}", fix=fix)


@cache
def _own_pool() -> str | None:
    """The work pool whose worker started this process; None when no worker did.

    Raises:
        StageCrashed: The server does not answer; another try may help.
    """
    number = os.environ.get("PREFECT__FLOW_RUN_ID")
    if not number:
        return None
    try:
        with get_client(sync_client=True) as client:
            return client.read_flow_run(UUID(number)).work_pool_name
    except _TROUBLE as error:
        raise StageCrashed(f"the Prefect server does not answer: {error}", field="placement.pools") from error
