"""What `deployments/` says should be on a Prefect server: its pools and its deployments, as plain values."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from prefect.flows import Flow, load_flow_from_entrypoint
from prefect.utilities.callables import parameter_schema

from flows.checkout import installed
from rloop_core.errors import ConfigError

GPU_POOL = "rloop-gpu"

Change = dict[str, Any]
"""`kind`, `name`, `action` (created, changed or left) and `details`."""


@dataclass(frozen=True)
class Pool:
    """A work pool as pools.yaml and its template say."""

    name: str
    type: str
    description: str
    concurrency_limit: int | None
    template: dict[str, Any]


@dataclass(frozen=True)
class Deployment:
    """A deployment as prefect.yaml says."""

    flow: str
    name: str
    fields: dict[str, Any]
    """What the server is to hold, by the names of its API."""
    limit: int | None
    collision_strategy: str | None
    schedules: list[dict[str, Any]]


def planned_pools(pool_type: str) -> list[Pool]:
    """The pools; that of the GPUs is of the given type."""
    folder = deployments_folder() / "pools"
    pools = []
    for name, fields in yaml.safe_load((folder / "pools.yaml").read_text()).items():
        kind = pool_type if name == GPU_POOL else fields["type"]
        template = json.loads((folder / f"{kind}.json").read_text())
        pools.append(Pool(name, kind, fields["description"], fields["concurrency_limit"], template))
    return pools


def planned_deployments(store: str | None) -> list[Deployment]:
    """The deployments; runs and comparisons have the store, if one is given, as their default."""
    content = yaml.safe_load((deployments_folder() / "prefect.yaml").read_text())
    return [_deployment(fields, content["pull"], store) for fields in content["deployments"]]


def _deployment(given: dict[str, Any], pull: list[dict[str, Any]], store: str | None) -> Deployment:
    flow: Flow[..., Any] = load_flow_from_entrypoint(f"{deployments_folder().parent}/{given['entrypoint']}")
    schema = parameter_schema(flow)
    parameters = dict(given.get("parameters", {}))
    if store is not None and "store" in schema.properties:
        parameters["store"] = store
    bounds = given.get("concurrency_limit", {})
    fields = {
        "entrypoint": given["entrypoint"],
        "version": given["version"],
        "description": flow.description,
        "tags": given.get("tags", []),
        "parameters": parameters,
        "parameter_openapi_schema": schema.model_dump(mode="json", exclude_unset=True),
        "enforce_parameter_schema": given["enforce_parameter_schema"],
        "pull_steps": pull,
        "work_pool_name": given["work_pool"]["name"],
        "job_variables": given["work_pool"].get("job_variables", {}),
    }
    limit, strategy = bounds.get("limit"), bounds.get("collision_strategy")
    return Deployment(flow.name, given["name"], fields, limit, strategy, given.get("schedules", []))


def change(kind: str, name: str, action: str, details: list[str]) -> Change:
    """One line of what `rloop deploy` did, or would do."""
    return {"kind": kind, "name": name, "action": action, "details": details}


def deployments_folder() -> Path:
    """`deployments/` of the clone, or of the image.

    Raises:
        ConfigError: It was installed without it.
    """
    folder = Path(installed()["directory"]) / "deployments"
    if not (folder / "prefect.yaml").is_file():
        fix = "clone the repository and install it from there: pip install -e ."
        raise ConfigError(f"{folder} is not there: rloop was installed without it", field="deployments", fix=fix)
    return folder
