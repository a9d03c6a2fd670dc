"""The parameters of a deployed run, which the UI shows as a form, and the config that they give."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from prefect.runtime import flow_run
from pydantic import Field

from flows.checkout import installed
from rloop_core.config import Config, dated
from rloop_core.config.loading import assign, make_config, read_mapping
from rloop_core.errors import ConfigError, RLoopError
from rloop_core.store.uri import CREDENTIALS

_CONFIGS = {path.stem: path for path in Path(installed()["directory"], "deployments/configs").glob("*.yaml")}

ConfigName = Annotated[str, Field(json_schema_extra={"enum": [*sorted(_CONFIGS)]})]
"""One of deployments/configs; the form shows them as choices, and the server refuses any other."""
_SECRET_STORE = {"not": {"type": "string", "pattern": rf"^[^=]*=\s*[\"']?{CREDENTIALS}"}}
Override = Annotated[str, Field(pattern=r"^\s*[^.=\s]+(\.[^.=\s]+)*\s*=", json_schema_extra=_SECRET_STORE)]


def config_from(
    config_file: str = "demo",
    config: Config | None = None,
    overrides: Sequence[str] = (),
    name: str | None = None,
    iterations: int | None = None,
    store: str | None = None,
    replace: bool = False,
    *,
    start: datetime | None = None,
) -> Config:
    """Return the config that the form gives: its whole config or else its file, then overrides, then the other fields.

    `start` is when the flow run was first to start. Its day is the one in the run's name, also in a later restart.

    Raises:
        ConfigError: Unknown file, field or value, or a combination that cannot run.
    """
    data = config.model_dump(mode="json") if config else _shipped(config_file)
    fields = {"name": name, "iterations": iterations, "placement.store": store, "placement.replace": replace or None}
    given = [f"{field}={json.dumps(value)}" for field, value in fields.items() if value is not None]
    for override in [*overrides, *given]:
        assign(data, override)
    return dated(make_config(data), (start or datetime.now(UTC)).astimezone(UTC).date())


def requested_config() -> Config:
    """Return the config that the form of the current flow run gives."""
    return config_from(**flow_run.parameters, start=flow_run.scheduled_start_time)


def form_run_name() -> str:
    """Return the flow run's name, which is the name of the form's run."""
    try:
        return requested_config().name
    except RLoopError:  # the flow itself reports the error
        return str(flow_run.parameters.get("name") or flow_run.parameters.get("config_file"))


def _shipped(name: str) -> dict[str, Any]:
    if name not in _CONFIGS:
        known = ", ".join(sorted(_CONFIGS)) or "none"
        raise ConfigError(f"the worker has no config {name!r}", field="config_file", fix=f"it has {known}")
    return read_mapping(_CONFIGS[name])
