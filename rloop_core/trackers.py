"""Experiment trackers for the curves of explore and rft, by accelerate: TensorBoard, Weights & Biases, MLflow, trackio.

A stage of an iteration is one run of a tracker. Started again, it continues that run: steps repeated after a crash are
logged again, with equal values.
"""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rloop_core.config import Config
from rloop_core.errors import ConfigError

Log = Callable[[dict[str, Any]], None]
PROJECT = "rloop"
"""Project or experiment of all runs, unless the environment names another."""
_STEPS = ("step", "steps", "seconds/step")
_SILENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "WANDB_ERROR_REPORTING": "false",
    "GRADIO_ANALYTICS_ENABLED": "False",
    "DO_NOT_TRACK": "1",
}
"""Environment that stops trackers from reporting usage to their makers."""


def check_trackers(config: Config) -> None:
    """Raise ConfigError if a tracker is not installed."""
    for name in config.placement.report_to:
        if find_spec(name) is None:
            fix = f"pip install {name} (or 'rloop[trackers]' for all of them), or take it out of the list"
            raise ConfigError(f"{name} is not installed", field="placement.report_to", fix=fix)


def open_tracker(kind: str, config: Config, name: str, key: str, first: int) -> Any:
    """Return accelerate's tracker of a kind, with the run `key` open: a new one, or one that a crash left.

    Its data is below `placement.tracker_folder`, unless the tracker's own environment variables name a server. It gets
    the config without `placement`, nothing of the machine and no console output. `first` is the first step.
    """
    from accelerate import PartialState
    from accelerate.tracking import MLflowTracker, TensorBoardTracker, TrackioTracker, WandBTracker

    PartialState()  # accelerate's trackers need it; in a stage the trainer has made it
    folder = Path(config.placement.tracker_folder).expanduser().absolute()
    folder.mkdir(parents=True, exist_ok=True)
    settings = dict(_flat(config.model_dump(mode="json", exclude={"placement"})))
    if kind == "tensorboard":
        place = f"{config.name}/{key.removeprefix(f'{config.name}-')}"
        tracker = TensorBoardTracker(place, folder / "tensorboard", purge_step=first)
        tracker.start()
        tracker.tracker.add_text("config", f"```json\n{json.dumps(settings, indent=1, default=str)}\n```", first)
        return tracker
    if kind == "mlflow":
        os.environ.setdefault("MLFLOW_TRACKING_URI", f"sqlite:///{folder / 'mlflow.db'}")
        import mlflow

        tags = {"rloop.key": key, "rloop.run": config.name}
        found = mlflow.search_runs(
            search_all_experiments=True, filter_string=f"tags.`rloop.key` = '{key}'", output_format="list"
        )
        tracker = MLflowTracker(PROJECT, run_id=found[0].info.run_id if found else None, run_name=name, tags=tags)
        tracker.start()
        if not found:
            tracker.store_init_configuration(settings)
        return tracker
    common = {"group": config.name, "config": settings}
    if kind == "wandb":
        import wandb

        mode = os.environ.get("WANDB_MODE", "offline")
        names = ("x_disable_meta", "x_disable_machine_info", "x_disable_stats", "disable_git", "silent")
        quiet = wandb.Settings(console="off", x_save_requirements=False, **dict.fromkeys(names, True))
        resume = "allow" if mode == "online" else None  # offline, the id alone joins what is sent later
        project = os.environ.get("WANDB_PROJECT", PROJECT)
        tracker = WandBTracker(
            project, name=name, id=key, dir=str(folder), mode=mode, resume=resume, settings=quiet, **common
        )
    else:  # trackio identifies runs by name
        os.environ.setdefault("TRACKIO_DIR", str(folder / "trackio"))  # read when trackio is imported
        quiet = {"embed": False, "auto_log_gpu": False, "auto_log_cpu": False}
        project = os.environ.get("TRACKIO_PROJECT", PROJECT)
        tracker = TrackioTracker(project, name=key, resume="allow", **quiet, **common)
    tracker.start()
    return tracker


@contextmanager
def tracked(config: Config, stage: str, iteration: int, key: str, note: Callable[[str], None]) -> Iterator[Log]:
    """Yield a function that logs a row of a stage, `step` and numbers by name, to every tracker in `report_to`.

    Trackers are opened at the first row. An error in one is noted once, and that tracker gets nothing more: it must not
    fail a stage. `key` is the same whenever the same stage (`explore` or `rft`) starts again.
    """
    name = f"{config.name}-{iteration:03d}-{stage}"
    opened: dict[str, Any] = dict.fromkeys(config.placement.report_to)
    for variable, value in _SILENT.items() if opened else ():
        os.environ.setdefault(variable, value)

    @contextmanager
    def guarded(kind: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            del opened[kind]
            reason = (str(error).splitlines() or [""])[0]
            note(f"tracker {kind} is left out from here on: {type(error).__name__}: {reason[:200]}")

    def log(row: dict[str, Any]) -> None:
        step = int(row["step"])
        numbers = [(name, value) for name, value in _flat(row, "/") if isinstance(value, int | float)]
        values = {f"{stage}/{name}": float(value) for name, value in numbers if name not in _STEPS}
        for kind in list(opened):
            with guarded(kind):
                opened[kind] = opened[kind] or open_tracker(kind, config, name, f"{name}-{key[:8]}", step)
                opened[kind].log(values, step)

    try:
        yield log
    finally:
        for kind in [kind for kind, tracker in opened.items() if tracker]:
            with guarded(kind):
                opened[kind].finish()


def _flat(values: dict[str, Any], separator: str = ".", prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, separator, f"{prefix}{name}{separator}")
        else:
            yield f"{prefix}{name}", value
