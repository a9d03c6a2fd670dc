"""Opens the trackers that placement names, and keeps their troubles away from what they watch."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rloop_core.config import Config
from rloop_core.errors import ConfigError
from rloop_core.trackers.kinds import TrackedRun, Tracker

Log = Callable[[dict[str, Any]], None]
_AXES = {"explore": "rl_step", "rft": "update"}
_SILENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "WANDB_ERROR_REPORTING": "false",
    "GRADIO_ANALYTICS_ENABLED": "False",
    "DO_NOT_TRACK": "1",
}
"""Trackers report on their users to their makers unless told not to."""


def check_trackers(config: Config) -> None:
    """Refuse a tracker that is not installed where the stages that log to it are computed.

    Raises:
        ConfigError: Naming the field and the fix.
    """
    if set(_AXES) <= set(config.placement.pools):
        return
    for name in config.placement.report_to:
        if find_spec(name) is None:
            fix = f"pip install {name} (or 'rloop[trackers]' for all of them), or take it out of the list"
            raise ConfigError(f"{name} is not installed", field="placement.report_to", fix=fix)


@contextmanager
def tracked(config: Config, stage: str, iteration: int, key: str, note: Callable[[str], None]) -> Iterator[Log]:
    """A function that logs a row of a stage, `step` and numbers by name, to every tracker that placement names.

    What goes wrong in a tracker is noted once, and that tracker left alone from there on: none is worth a stage.

    Args:
        config: The run's config.
        stage: explore or rft.
        iteration: i.
        key: The same whenever the same stage is started again.
        note: Told what went wrong.
    """
    run = _run_of(config, stage, iteration, key)
    trackers: dict[str, Tracker] = {}

    def attempt(name: str, act: Callable[[], Any]) -> Any:
        try:
            return act()
        except Exception as error:
            trackers.pop(name, None)
            reason = (str(error).splitlines() or [""])[0]
            note(f"tracker {name} is left out from here on: {type(error).__name__}: {reason[:200]}")
            return None

    for variable, value in _SILENT.items() if config.placement.report_to else ():
        os.environ.setdefault(variable, value)
    names: list[str] = list(dict.fromkeys(config.placement.report_to))
    for name in names:
        opened = attempt(name, lambda name=name: import_module(f"rloop_core.trackers.to_{name}").open_tracker(run))  # type: ignore[misc]
        if opened is not None:
            trackers[name] = opened

    def log(row: dict[str, Any]) -> None:
        values = {f"{stage}/{name}": value for name, value in _numbers(row)}
        for name, tracker in list(trackers.items()):
            attempt(name, lambda tracker=tracker: tracker.log(int(row["step"]), values))  # type: ignore[misc]

    failed = True
    try:
        yield log
        failed = False
    finally:
        for name, tracker in list(trackers.items()):
            attempt(name, lambda tracker=tracker: tracker.close(failed=failed))  # type: ignore[misc]


def _run_of(config: Config, stage: str, iteration: int, key: str) -> TrackedRun:
    name = f"{config.name}-{iteration:03d}-{stage}"
    folder = Path(config.placement.tracker_folder).expanduser().absolute()
    settings = dict(_flat(config.model_dump(mode="json", exclude={"placement"})))
    return TrackedRun(name, config.name, f"{name}-{key[:8]}", _AXES[stage], settings, folder)


def _numbers(row: dict[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in _flat(row, "/"):
        if name not in ("step", "steps", "seconds/step") and isinstance(value, int | float):
            yield name, float(value)


def _flat(values: dict[str, Any], separator: str = ".", prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, separator, f"{prefix}{name}{separator}")
        else:
            yield f"{prefix}{name}", value
