"""`rloop deploy`: pools, deployments and automations on a Prefect server as `deployments/` says, and what that changed.

The files decide what runs and how; limits, pauses, schedules switched on or off and the store are the operator's, and
stay as the server has them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
from prefect import get_client
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import DeploymentScheduleCreate, WorkPoolCreate, WorkPoolUpdate
from prefect.client.schemas.objects import ConcurrencyLimitStrategy, ConcurrencyOptions
from prefect.client.schemas.responses import DeploymentResponse
from prefect.client.schemas.schedules import CronSchedule
from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows.deploy_automations import Wishes, block_to_notify, deploy_automations
from flows.deploy_limits import deploy_limits
from flows.deploy_plan import GPU_POOL, Change, Deployment, Pool, change, planned_deployments, planned_pools
from rloop_core.errors import ConfigError


def deploy(
    store: str | None,
    api: str | None,
    pool_type: str,
    dry_run: bool,
    *,
    silence: int | None = None,
    resumes: int | None = None,
    notify: str | None = None,
) -> list[Change]:
    """Create or update everything; of a dry run, what that would do.

    Args:
        store: Default object store of runs and comparisons; None keeps the server's.
        api: Address of the server's API; None takes the configured one.
        pool_type: `process`, `docker` or `kubernetes`: what starts runs on GPUs.
        dry_run: Ask the server and change nothing.
        silence: Seconds without a heartbeat after which a run is taken for dead; None keeps the server's.
        resumes: Times that a crashed run is started again by itself; None keeps the server's.
        notify: `TYPE/NAME` of the block that is told of trouble; None keeps the server's.

    Raises:
        ConfigError: No server, a server that refuses, or something that cannot be made as asked.
    """
    with _server(api) as client:
        wishes = Wishes(silence, resumes, block_to_notify(client, notify))
        pools, deployments = planned_pools(pool_type), planned_deployments(store)
        there = {one.name: _deployment_there(client, one) for one in deployments}
        if pool_type != "process":
            _check_stores(deployments, there, pool_type)
        changes = deploy_limits(client, dry_run) + [_pool(client, pool, dry_run) for pool in pools]
        changes += [_deploy(client, one, there[one.name], dry_run) for one in deployments]
        return changes + deploy_automations(client, wishes, dry_run)


@contextmanager
def _server(api: str | None) -> Iterator[SyncPrefectClient]:
    address = (api or PREFECT_API_URL.value() or "").rstrip("/")
    if not address:
        fix = "give --api http://HOST:4200/api, or set PREFECT_API_URL or a Prefect profile"
        raise ConfigError("no Prefect server is named", field="--api", fix=fix)
    with temporary_settings(updates={PREFECT_API_URL: address}), get_client(sync_client=True) as client:
        try:
            client.read_work_pools(limit=1)
            yield client
        except httpx.TransportError as error:
            fix = "start it (prefect server start), or correct the address"
            raise ConfigError(f"no Prefect server answers at {address}: {error}", field="--api", fix=fix) from error
        except PrefectHTTPStatusError as error:
            code = error.response.status_code
            if code in (401, 403):
                fix = "set PREFECT_API_AUTH_STRING (or PREFECT_API_KEY) in the environment"
                raise ConfigError(f"{address} refuses who is asking ({code})", field="--api", fix=fix) from error
            what = f"{address} answers {code}: {error.response.text[:300]}"
            fix = "see its log, and try again" if code >= 500 else "name a Prefect 3 API, ending in /api"
            raise ConfigError(what, field="--api", fix=fix) from error


def _pool(client: SyncPrefectClient, pool: Pool, dry_run: bool) -> Change:
    try:
        there = client.read_work_pool(pool.name)
    except ObjectNotFound:
        if not dry_run:
            client.create_work_pool(
                WorkPoolCreate(
                    name=pool.name,
                    type=pool.type,
                    description=pool.description,
                    base_job_template=pool.template,
                    concurrency_limit=pool.concurrency_limit,
                )
            )
        return change("pool", pool.name, "created", [f"type {pool.type}", f"limit {pool.concurrency_limit}"])
    if there.type != pool.type:
        what = f"{pool.name} is a {there.type} pool, and a pool's type is fixed"
        fix = f"--pool-type {there.type}, or first prefect work-pool delete {pool.name}"
        raise ConfigError(what, field="--pool-type", fix=fix)
    wanted: dict[str, Any] = {"description": pool.description, "base_job_template": pool.template}
    differing = [name for name, value in wanted.items() if getattr(there, name) != value]
    if differing and not dry_run:
        client.update_work_pool(pool.name, WorkPoolUpdate(**{name: wanted[name] for name in differing}))
    kept = [] if there.concurrency_limit == pool.concurrency_limit else [f"kept: limit {there.concurrency_limit}"]
    kept += ["kept: paused"] if there.is_paused else []
    return change("pool", pool.name, "changed" if differing else "left", [*differing, *kept])


def _deploy(client: SyncPrefectClient, one: Deployment, there: DeploymentResponse | None, dry_run: bool) -> Change:
    name = f"{one.flow}/{one.name}"
    parameters = {**_kept_store(one, there), **one.fields["parameters"]}
    fields = {**one.fields, "parameters": parameters}
    schedules = _schedules(one, there)
    differing = _differing(one, there, fields, schedules) if there else []
    limit = _limit(there) or one.limit
    if (differing or not there) and not dry_run:
        strategy = one.collision_strategy and ConcurrencyLimitStrategy(one.collision_strategy)
        client.create_deployment(
            flow_id=client.create_flow_from_name(one.flow),
            name=one.name,
            schedules=schedules,
            concurrency_limit=limit,
            concurrency_options=ConcurrencyOptions(collision_strategy=strategy) if strategy else None,
            paused=there.paused if there else False,
            **fields,
        )
    if there:
        return change("deployment", name, "changed" if differing else "left", [*differing, *_kept(one, there)])
    store = [f"store {parameters['store']}"] if "store" in parameters else []
    return change("deployment", name, "created", [f"pool {fields['work_pool_name']}", *store])


def _schedules(one: Deployment, there: DeploymentResponse | None) -> list[DeploymentScheduleCreate]:
    """The file's schedules, on or off as the server has them."""
    on = {schedule.slug: schedule.active for schedule in there.schedules} if there else {}
    return [
        DeploymentScheduleCreate(
            schedule=CronSchedule(cron=given["cron"], timezone=given["timezone"]),
            active=on.get(given["slug"], given["active"]),
            parameters=given.get("parameters", {}),
            slug=given["slug"],
        )
        for given in one.schedules
    ]


def _differing(
    one: Deployment, there: DeploymentResponse, fields: dict[str, Any], schedules: list[DeploymentScheduleCreate]
) -> list[str]:
    """Names of what the server has otherwise than the files say."""
    differing = [field for field, value in fields.items() if getattr(there, field) != value]
    strategy = there.concurrency_options.collision_strategy.value if there.concurrency_options else None
    if strategy != one.collision_strategy or (_limit(there) is None) != (one.limit is None):
        differing.append("concurrency_limit")
    if [_timing(schedule) for schedule in there.schedules] != [_timing(schedule) for schedule in schedules]:
        differing.append("schedules")
    return differing


def _kept(one: Deployment, there: DeploymentResponse) -> list[str]:
    """What an operator has set otherwise than the files, in words."""
    kept = [f"kept: store {store}" for store in _kept_store(one, there).values()]
    kept += [] if _limit(there) in (None, one.limit) else [f"kept: limit {_limit(there)}"]
    planned = {given["slug"]: given["active"] for given in one.schedules}
    for schedule in there.schedules:
        if schedule.active != planned.get(schedule.slug, schedule.active):
            kept.append(f"kept: schedule {schedule.slug} is {'on' if schedule.active else 'off'}")
    return [*kept, "kept: paused"] if there.paused else kept


def _limit(there: DeploymentResponse | None) -> int | None:
    return there.global_concurrency_limit.limit if there and there.global_concurrency_limit else None


def _deployment_there(client: SyncPrefectClient, one: Deployment) -> DeploymentResponse | None:
    try:
        return client.read_deployment_by_name(f"{one.flow}/{one.name}")
    except ObjectNotFound:
        return None


def _kept_store(one: Deployment, there: DeploymentResponse | None) -> dict[str, Any]:
    """The store that an earlier `--store` or somebody in the UI set, unless another is asked for now."""
    if not there or "store" in one.fields["parameters"] or "store" not in there.parameters:
        return {}
    return {"store": there.parameters["store"]}


def _timing(schedule: Any) -> tuple[Any, ...]:
    return schedule.slug, schedule.schedule.cron, schedule.schedule.timezone, schedule.parameters


def _check_stores(deployments: list[Deployment], there: dict[str, DeploymentResponse | None], pool_type: str) -> None:
    for one in deployments:
        form = one.fields["parameter_openapi_schema"]["properties"]
        stores = one.fields["work_pool_name"] == GPU_POOL and "store" in form
        if stores and "store" not in {**_kept_store(one, there[one.name]), **one.fields["parameters"]}:
            what = f"a {pool_type} run ends with its container, and so would a store inside it"
            raise ConfigError(
                what, field="--store", fix="name one that outlives it, such as --store s3://bucket/prefix"
            )
