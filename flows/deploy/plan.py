"""Read `deployments/`: the pools, deployments, limits and automations that a Prefect server should have."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate, WorkPoolCreate
from prefect.flows import Flow, load_flow_from_entrypoint
from prefect.utilities.callables import parameter_schema

from flows.checkout import installed
from rloop_core.errors import ConfigError

GPU_POOL = "rloop-gpu"

Change = dict[str, Any]
"""`kind`, `name`, `action` (created, changed or left) and `details`: a line of what `rloop deploy` did or would do."""


@dataclass(frozen=True)
class Deployment:
    """A deployment of prefect.yaml.

    Attributes:
        flow: Name of its flow.
        name: Its own name.
        fields: What the server should hold, by the names of Prefect's API.
        limit: Concurrent runs at most.
        collision_strategy: What happens to a run beyond the limit.
        schedules: As in the file.
    """

    flow: str
    name: str
    fields: dict[str, Any]
    limit: int | None
    collision_strategy: str | None
    schedules: list[dict[str, Any]]


def planned_pools(pool_type: str) -> list[WorkPoolCreate]:
    """Return the pools; the GPU pool has the given type."""
    pools = []
    for name, fields in read_yaml("pools/pools.yaml").items():
        kind = pool_type if name == GPU_POOL else fields["type"]
        template = json.loads((_folder() / f"pools/{kind}.json").read_text())
        pools.append(WorkPoolCreate(**{**fields, "name": name, "type": kind, "base_job_template": template}))
    return pools


def planned_limits() -> list[GlobalConcurrencyLimitCreate]:
    """Return the global concurrency limits."""
    return [GlobalConcurrencyLimitCreate(name=name, **fields) for name, fields in read_yaml("limits.yaml").items()]


def planned_deployments(store: str | None) -> list[Deployment]:
    """Return the deployments; a given store becomes the default of all that take one."""
    content = read_yaml("prefect.yaml")
    return [_deployment(entry, content["pull"], store) for entry in content["deployments"]]


def _deployment(entry: dict[str, Any], pull: list[dict[str, Any]], store: str | None) -> Deployment:
    flow: Flow[..., Any] = load_flow_from_entrypoint(f"{_folder().parent}/{entry['entrypoint']}")
    schema = parameter_schema(flow)
    parameters = dict(entry.get("parameters", {}))
    if store is not None and "store" in schema.properties:
        parameters["store"] = store
    concurrency = entry.get("concurrency_limit", {})
    fields = {
        "entrypoint": entry["entrypoint"],
        "version": entry["version"],
        "description": flow.description,
        "tags": entry.get("tags", []),
        "parameters": parameters,
        "parameter_openapi_schema": schema.model_dump(mode="json", exclude_unset=True),
        "enforce_parameter_schema": entry["enforce_parameter_schema"],
        "pull_steps": pull,
        "work_pool_name": entry["work_pool"]["name"],
        "job_variables": entry["work_pool"].get("job_variables", {}),
    }
    limit, strategy = concurrency.get("limit"), concurrency.get("collision_strategy")
    return Deployment(flow.name, entry["name"], fields, limit, strategy, entry.get("schedules", []))


def change(kind: str, name: str, action: str, details: list[str]) -> Change:
    """Return a change as plain values."""
    return {"kind": kind, "name": name, "action": action, "details": details}


def read_yaml(name: str) -> Any:
    """Return the content of a file of `deployments/`."""
    return yaml.safe_load((_folder() / name).read_text())


def _folder() -> Path:
    """Return `deployments/` of the clone or of the image.

    Raises:
        ConfigError: rloop was installed without it.
    """
    folder = Path(installed()["directory"]) / "deployments"
    if not (folder / "prefect.yaml").is_file():
        fix = "clone the repository and install it from there: pip install -e ."
        raise ConfigError(f"{folder} is not there: rloop was installed without it", field="deployments", fix=fix)
    return folder
