"""Create or update pools, limits, deployments and automations on a Prefect server.

The files in `deployments/` decide what runs and how. Limits, pauses, active schedules and the store belong to the
server's operator, and stay as the server has them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
from prefect import get_client
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import (
    DeploymentScheduleCreate,
    GlobalConcurrencyLimitCreate,
    WorkPoolCreate,
    WorkPoolUpdate,
)
from prefect.client.schemas.objects import ConcurrencyLimitStrategy, ConcurrencyOptions
from prefect.client.schemas.responses import DeploymentResponse, GlobalConcurrencyLimitResponse
from prefect.client.schemas.schedules import CronSchedule
from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows.deploy.automations import Options, block_to_notify, deploy_automations
from flows.deploy.plan import GPU_POOL, Change, Deployment, change, planned_deployments, planned_limits, planned_pools
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
    """Create or update everything, and return the changes; a dry run returns them without making them.

    Args:
        store: Default object store of runs and comparisons; None keeps the server's.
        api: Address of the server's API; None takes the configured one.
        pool_type: `process`, `docker` or `kubernetes`: what starts runs on GPUs.
        dry_run: Ask the server and change nothing.
        silence: Seconds without a heartbeat after which a run counts as crashed; None keeps the server's.
        resumes: How often a crashed run is started again; None keeps the server's.
        notify: `TYPE/NAME` of the block that is notified of trouble; None keeps the server's.

    Raises:
        ConfigError: No server, a server that refuses, or something that cannot be made as requested.
    """
    with _server(api) as client:
        options = Options(silence, resumes, block_to_notify(client, notify))
        pools = planned_pools(pool_type)
        deployments = [(plan, _existing_deployment(client, plan)) for plan in planned_deployments(store)]
        if pool_type != "process":
            for plan, existing in deployments:
                _check_store(plan, existing, pool_type)
        changes = [_deploy_limit(client, limit, dry_run) for limit in planned_limits()]
        changes += [_deploy_pool(client, pool, dry_run) for pool in pools]
        changes += [_deploy(client, plan, existing, dry_run) for plan, existing in deployments]
        return changes + deploy_automations(client, options, dry_run)


@contextmanager
def _server(api: str | None) -> Iterator[SyncPrefectClient]:
    """Yield a client of the server; its errors in the block become a ConfigError."""
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


def _deploy_limit(client: SyncPrefectClient, plan: GlobalConcurrencyLimitCreate, dry_run: bool) -> Change:
    """Create a global concurrency limit; an existing one belongs to the operator."""
    existing: GlobalConcurrencyLimitResponse | None = None
    try:
        existing = client.read_global_concurrency_limit_by_name(plan.name)
    except ObjectNotFound:
        if not dry_run:
            client.create_global_concurrency_limit(plan)
    now = existing or plan
    details = [f"limit {now.limit}", "on" if now.active else "off"]
    if (now.limit, now.active) != (plan.limit, plan.active):
        details = [f"kept: {', '.join(details)}"]
    return change("limit", plan.name, "left" if existing else "created", details)


def _deploy_pool(client: SyncPrefectClient, pool: WorkPoolCreate, dry_run: bool) -> Change:
    try:
        existing = client.read_work_pool(pool.name)
    except ObjectNotFound:
        if not dry_run:
            client.create_work_pool(pool)
        return change("pool", pool.name, "created", [f"type {pool.type}", f"limit {pool.concurrency_limit}"])
    if existing.type != pool.type:
        what = f"{pool.name} is a {existing.type} pool, and a pool's type is fixed"
        fix = f"--pool-type {existing.type}, or first prefect work-pool delete {pool.name}"
        raise ConfigError(what, field="--pool-type", fix=fix)
    plan = pool.model_dump(include={"description", "base_job_template"})
    differing = [name for name, value in plan.items() if getattr(existing, name) != value]
    if differing and not dry_run:
        client.update_work_pool(pool.name, WorkPoolUpdate(**{name: plan[name] for name in differing}))
    kept = [] if existing.concurrency_limit == pool.concurrency_limit else [f"kept: limit {existing.concurrency_limit}"]
    kept += ["kept: paused"] if existing.is_paused else []
    return change("pool", pool.name, "changed" if differing else "left", [*differing, *kept])


def _deploy(client: SyncPrefectClient, plan: Deployment, existing: DeploymentResponse | None, dry_run: bool) -> Change:
    name = f"{plan.flow}/{plan.name}"
    parameters = {**_kept_store(plan, existing), **plan.fields["parameters"]}
    fields = {**plan.fields, "parameters": parameters}
    schedules = _schedules(plan, existing)
    differing = _differing(plan, existing, fields, schedules) if existing else []
    if (differing or not existing) and not dry_run:
        strategy = plan.collision_strategy and ConcurrencyLimitStrategy(plan.collision_strategy)
        client.create_deployment(
            flow_id=client.create_flow_from_name(plan.flow),
            name=plan.name,
            schedules=schedules,
            concurrency_limit=_limit(existing) or plan.limit,
            concurrency_options=ConcurrencyOptions(collision_strategy=strategy) if strategy else None,
            paused=existing.paused if existing else False,
            **fields,
        )
    if existing:
        details = [*differing, *_kept_settings(plan, existing)]
        return change("deployment", name, "changed" if differing else "left", details)
    store = [f"store {parameters['store']}"] if "store" in parameters else []
    return change("deployment", name, "created", [f"pool {fields['work_pool_name']}", *store])


def _existing_deployment(client: SyncPrefectClient, plan: Deployment) -> DeploymentResponse | None:
    try:
        return client.read_deployment_by_name(f"{plan.flow}/{plan.name}")
    except ObjectNotFound:
        return None


def _schedules(plan: Deployment, existing: DeploymentResponse | None) -> list[DeploymentScheduleCreate]:
    """Return the file's schedules, active or not as the server has them."""
    active = {schedule.slug: schedule.active for schedule in existing.schedules} if existing else {}
    return [
        DeploymentScheduleCreate(
            schedule=CronSchedule(cron=entry["cron"], timezone=entry["timezone"]),
            active=active.get(entry["slug"], entry["active"]),
            parameters=entry.get("parameters", {}),
            slug=entry["slug"],
        )
        for entry in plan.schedules
    ]


def _differing(
    plan: Deployment, existing: DeploymentResponse, fields: dict[str, Any], schedules: list[DeploymentScheduleCreate]
) -> list[str]:
    """Return the names of the fields that the server has otherwise than the files."""
    differing = [field for field, value in fields.items() if getattr(existing, field) != value]
    options = existing.concurrency_options
    strategy = options.collision_strategy.value if options else None
    if strategy != plan.collision_strategy or (_limit(existing) is None) != (plan.limit is None):
        differing.append("concurrency_limit")
    if [_timing(schedule) for schedule in existing.schedules] != [_timing(schedule) for schedule in schedules]:
        differing.append("schedules")
    return differing


def _timing(schedule: Any) -> tuple[Any, ...]:
    return schedule.slug, schedule.schedule.cron, schedule.schedule.timezone, schedule.parameters


def _kept_settings(plan: Deployment, existing: DeploymentResponse) -> list[str]:
    """Describe the operator's settings that differ from the files."""
    kept = [f"kept: store {store}" for store in _kept_store(plan, existing).values()]
    if _limit(existing) not in (None, plan.limit):
        kept.append(f"kept: limit {_limit(existing)}")
    planned = {entry["slug"]: entry["active"] for entry in plan.schedules}
    kept += [
        f"kept: schedule {schedule.slug} is {'on' if schedule.active else 'off'}"
        for schedule in existing.schedules
        if schedule.active != planned.get(schedule.slug, schedule.active)
    ]
    return [*kept, "kept: paused"] if existing.paused else kept


def _limit(existing: DeploymentResponse | None) -> int | None:
    return existing.global_concurrency_limit.limit if existing and existing.global_concurrency_limit else None


def _kept_store(plan: Deployment, existing: DeploymentResponse | None) -> dict[str, Any]:
    """Return the server's default store, from an earlier `--store` or the UI, unless the plan has another."""
    if not existing or "store" in plan.fields["parameters"] or "store" not in existing.parameters:
        return {}
    return {"store": existing.parameters["store"]}


def _check_store(plan: Deployment, existing: DeploymentResponse | None, pool_type: str) -> None:
    """Refuse a container's run without a store outside it."""
    takes_store = "store" in plan.fields["parameter_openapi_schema"]["properties"]
    has_store = "store" in {**_kept_store(plan, existing), **plan.fields["parameters"]}
    if plan.fields["work_pool_name"] == GPU_POOL and takes_store and not has_store:
        what = f"a {pool_type} run ends with its container, and so would a store inside it"
        raise ConfigError(what, field="--store", fix="name one that outlives it, such as --store s3://bucket/prefix")
