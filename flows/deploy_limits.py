"""The named limits that `deployments/limits.yaml` asks for: made once, and then the operator's."""

import yaml
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate
from prefect.client.schemas.responses import GlobalConcurrencyLimitResponse
from prefect.exceptions import ObjectNotFound

from flows.deploy_plan import Change, change, deployments_folder


def deploy_limits(client: SyncPrefectClient, dry_run: bool) -> list[Change]:
    """Create the limits that the server has not; what was done to each."""
    planned = yaml.safe_load((deployments_folder() / "limits.yaml").read_text())
    changes = []
    for name, given in planned.items():
        there = _there(client, name)
        if there is None and not dry_run:
            client.create_global_concurrency_limit(GlobalConcurrencyLimitCreate(name=name, **given))
        limit, active = (there.limit, there.active) if there else (given["limit"], given["active"])
        details = [f"limit {limit}", "on" if active else "off"]
        kept = there is not None and (limit, active) != (given["limit"], given["active"])
        changes.append(
            change("limit", name, "left" if there else "created", [f"kept: {', '.join(details)}"] if kept else details)
        )
    return changes


def _there(client: SyncPrefectClient, name: str) -> GlobalConcurrencyLimitResponse | None:
    try:
        return client.read_global_concurrency_limit_by_name(name)
    except ObjectNotFound:
        return None
