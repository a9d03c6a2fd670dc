"""MLflow: `<tracker_folder>/mlflow.db`, or the server that MLFLOW_TRACKING_URI names."""

from __future__ import annotations

import os
import time
from typing import Any

from rloop_core.trackers.kinds import PROJECT, TrackedRun

_KEY = "rloop.key"


def open_tracker(run: TrackedRun) -> MlflowTracker:
    """The run that is tagged with this key, gone on with where there is one."""
    from mlflow.entities import Param
    from mlflow.tracking import MlflowClient

    run.folder.mkdir(parents=True, exist_ok=True)
    client = MlflowClient(os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{run.folder / 'mlflow.db'}")
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
    known = client.get_experiment_by_name(name)
    experiment = known.experiment_id if known else client.create_experiment(name)
    found = client.search_runs([experiment], f"tags.`{_KEY}` = '{run.key}'", max_results=1)
    if found:
        client.update_run(found[0].info.run_id, status="RUNNING")
        return MlflowTracker(client, found[0].info.run_id)
    tags = {_KEY: run.key, "rloop.run": run.group, "rloop.axis": run.axis}
    made = client.create_run(experiment, run_name=run.name, tags=tags).info.run_id
    parameters = [Param(key, str(value)[:500]) for key, value in run.config.items()]
    for start in range(0, len(parameters), 100):
        client.log_batch(made, params=parameters[start : start + 100])
    return MlflowTracker(client, made)


class MlflowTracker:
    """One MLflow run."""

    def __init__(self, client: Any, run_id: str) -> None:
        self._client = client
        self._run_id = run_id

    def log(self, step: int, values: dict[str, float]) -> None:
        """Values at a step."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        self._client.log_batch(self._run_id, [Metric(name, value, now, step) for name, value in values.items()])

    def close(self, *, failed: bool) -> None:
        """Set how it ended."""
        self._client.set_terminated(self._run_id, "FAILED" if failed else "FINISHED")
