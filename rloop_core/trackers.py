"""Experiment trackers for the curves of explore and rft: TensorBoard, Weights & Biases, MLflow and trackio."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from rloop_core.config import Config
from rloop_core.errors import ConfigError

Log = Callable[[dict[str, Any]], None]
PROJECT = "rloop"
"""Project or experiment of all runs, unless the environment names another."""
_AXES = {"explore": "rl_step", "rft": "update"}
_STEPS = ("step", "steps", "seconds/step")
_SILENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "WANDB_ERROR_REPORTING": "false",
    "GRADIO_ANALYTICS_ENABLED": "False",
    "DO_NOT_TRACK": "1",
}
"""Environment that stops trackers from reporting usage to their makers."""


@dataclass(frozen=True)
class TrackedRun:
    """One stage of one iteration, which is one run of a tracker."""

    name: str
    """`<run>-000-explore`."""
    group: str
    """Name of the RLoop run."""
    key: str
    """Distinguishes runs of one name under different configs; the same again after a crash."""
    axis: str
    """Unit of a step: `rl_step` or `update`."""
    config: dict[str, Any]
    """The run's config without `placement`, flat: `explore.learning_rate` and so on."""
    folder: Path
    """Local folder of all trackers."""


class Tracker(Protocol):
    """One tracker's run, opened by `Tracker(run)`. Steps repeated after a crash are logged again, with equal values."""

    def log(self, step: int, values: dict[str, float]) -> None:
        """Log values by name at a step."""

    def close(self, *, failed: bool) -> None:
        """End this process's part of the run."""


class _TensorBoard:
    """Event files below `<tracker_folder>/tensorboard/<run>/`; an earlier process's files stay, repeated steps replace.

    A run is shown by `tensorboard --logdir`.
    """

    def __init__(self, run: TrackedRun) -> None:
        from torch.utils.tensorboard import SummaryWriter  # fails here rather than at the first step

        self._make_writer = SummaryWriter
        self._writer: Any = None
        self._run = run
        self._folder = run.folder / "tensorboard" / run.group / run.key.removeprefix(f"{run.group}-")

    def log(self, step: int, values: dict[str, float]) -> None:
        if self._writer is None:
            self._writer = self._make_writer(str(self._folder), purge_step=step)
            settings = json.dumps(self._run.config, indent=1, default=str)
            self._writer.add_text("config", f"```json\n{settings}\n```", step)
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self, *, failed: bool) -> None:
        if self._writer is not None:
            self._writer.close()


class _Wandb:
    """Files below `<tracker_folder>/wandb/` for `wandb sync`; WANDB_MODE=online sends at once.

    Neither the machine's data nor its console output is logged. W&B's own step counts calls, so charts use the axis.
    """

    def __init__(self, run: TrackedRun) -> None:
        import wandb

        run.folder.mkdir(parents=True, exist_ok=True)
        mode = os.environ.get("WANDB_MODE", "offline")
        settings = wandb.Settings(
            console="off",
            disable_git=True,
            save_code=False,
            silent=True,
            x_disable_meta=True,
            x_disable_machine_info=True,
            x_disable_stats=True,
            x_save_requirements=False,
        )
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=run.name,
            id=run.key,
            group=run.group,
            dir=str(run.folder),
            config=run.config,
            mode=mode,
            resume="allow" if mode == "online" else None,  # offline, the id alone joins what is sent later
            reinit="create_new",
            settings=settings,
        )
        self._axis = run.axis
        self._run.define_metric(run.axis)
        self._run.define_metric("*", step_metric=run.axis)

    def log(self, step: int, values: dict[str, float]) -> None:
        self._run.log({**values, self._axis: step})

    def close(self, *, failed: bool) -> None:
        self._run.finish(exit_code=int(failed))


class _Mlflow:
    """`<tracker_folder>/mlflow.db`, or the server at MLFLOW_TRACKING_URI; continues the run tagged with the key."""

    def __init__(self, run: TrackedRun) -> None:
        from mlflow.entities import Param
        from mlflow.tracking import MlflowClient

        run.folder.mkdir(parents=True, exist_ok=True)
        uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{run.folder / 'mlflow.db'}"
        self._client = client = MlflowClient(uri)
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        existing = client.get_experiment_by_name(name)
        experiment = existing.experiment_id if existing else client.create_experiment(name)
        runs = client.search_runs([experiment], f"tags.`rloop.key` = '{run.key}'", max_results=1)
        if runs:
            self._run_id = runs[0].info.run_id
            client.update_run(self._run_id, status="RUNNING")
            return
        tags = {"rloop.key": run.key, "rloop.run": run.group, "rloop.axis": run.axis}
        self._run_id = client.create_run(experiment, run_name=run.name, tags=tags).info.run_id
        parameters = [Param(key, str(value)[:500]) for key, value in run.config.items()]
        for start in range(0, len(parameters), 100):  # the most that one request may hold
            client.log_batch(self._run_id, params=parameters[start : start + 100])

    def log(self, step: int, values: dict[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        self._client.log_batch(self._run_id, [Metric(name, value, now, step) for name, value in values.items()])

    def close(self, *, failed: bool) -> None:
        self._client.set_terminated(self._run_id, "FAILED" if failed else "FINISHED")


class _Trackio:
    """A database below `<tracker_folder>/trackio`, or what TRACKIO_DIR, _SPACE_ID or _SERVER_URL names.

    trackio identifies runs by name, so the run's name is the key.
    """

    def __init__(self, run: TrackedRun) -> None:
        os.environ.setdefault("TRACKIO_DIR", str(run.folder / "trackio"))  # read when trackio is imported
        import trackio

        self._run = trackio.init(
            project=os.environ.get("TRACKIO_PROJECT", PROJECT),
            name=run.key,
            group=run.group,
            config=run.config,
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )

    def log(self, step: int, values: dict[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self, *, failed: bool) -> None:
        self._run.finish()


TRACKERS: dict[str, Callable[[TrackedRun], Tracker]] = {
    "tensorboard": _TensorBoard,
    "wandb": _Wandb,
    "mlflow": _Mlflow,
    "trackio": _Trackio,
}
"""Names in `placement.report_to`, which are also their packages' names."""


def check_trackers(config: Config) -> None:
    """Check that the trackers are installed.

    Raises:
        ConfigError: One is not installed.
    """
    for name in config.placement.report_to:
        if find_spec(name) is None:
            fix = f"pip install {name} (or 'rloop[trackers]' for all of them), or take it out of the list"
            raise ConfigError(f"{name} is not installed", field="placement.report_to", fix=fix)


@contextmanager
def tracked(config: Config, stage: str, iteration: int, key: str, note: Callable[[str], None]) -> Iterator[Log]:
    """Yield a function that logs a row of a stage, `step` and numbers by name, to every tracker in `report_to`.

    An error in a tracker is noted once, and that tracker gets nothing more: it must not fail a stage. `key` is the same
    whenever the same stage (`explore` or `rft`) starts again.
    """
    name, placement = f"{config.name}-{iteration:03d}-{stage}", config.placement
    settings = dict(_flat(config.model_dump(mode="json", exclude={"placement"})))
    folder = Path(placement.tracker_folder).expanduser().absolute()
    run = TrackedRun(name, config.name, f"{name}-{key[:8]}", _AXES[stage], settings, folder)
    trackers: dict[str, Tracker] = {}

    @contextmanager
    def guarded(name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            trackers.pop(name, None)
            reason = (str(error).splitlines() or [""])[0]
            note(f"tracker {name} is left out from here on: {type(error).__name__}: {reason[:200]}")

    for variable, value in _SILENT.items() if placement.report_to else ():
        os.environ.setdefault(variable, value)
    for kind in dict.fromkeys(placement.report_to):
        with guarded(kind):
            trackers[kind] = TRACKERS[kind](run)

    def log(row: dict[str, Any]) -> None:
        numbers = [(name, value) for name, value in _flat(row, "/") if isinstance(value, int | float)]
        values = {f"{stage}/{name}": float(value) for name, value in numbers if name not in _STEPS}
        for opened, tracker in list(trackers.items()):
            with guarded(opened):
                tracker.log(int(row["step"]), values)

    failed = True
    try:
        yield log
        failed = False
    finally:
        for opened, tracker in list(trackers.items()):
            with guarded(opened):
                tracker.close(failed=failed)


def _flat(values: dict[str, Any], separator: str = ".", prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, separator, f"{prefix}{name}{separator}")
        else:
            yield f"{prefix}{name}", value
