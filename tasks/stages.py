"""One Prefect task a stage. The store decides whether there is anything to do; Prefect shows what was decided."""

from functools import partial
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.logging import get_run_logger
from prefect.runtime import task_run
from prefect.states import Completed

from rloop_core.errors import StageCrashed, StoreUnavailable
from rloop_core.stages.runner import StageResult
from tasks.artifacts import publish_table
from tasks.session import RunSession

_MOST_RETRIES = 1000  # what is worth retrying decides


def _worth_retrying(task: Any, run: Any, state: State) -> bool:
    """A crash and a silent store may pass, `placement.stage_retries` times; other errors would only come again."""
    session: RunSession = task_run.parameters["run"]
    error = state.result(raise_on_failure=False)
    return (
        isinstance(error, (StageCrashed, StoreUnavailable)) and run.run_count <= session.config.placement.stage_retries
    )


def _place(iteration: int) -> str:
    """`000`, or `base` for what belongs to theta_0."""
    return "base" if iteration < 0 else f"{iteration:03d}"


def _run_name() -> str:
    """`explore-000`; shown in the UI."""
    parameters = task_run.parameters
    return f"{parameters['stage']}-{_place(parameters['iteration'])}"


_stage_task = partial(
    task,
    cache_policy=NO_CACHE,
    persist_result=False,
    retries=_MOST_RETRIES,
    retry_delay_seconds=2,
    retry_condition_fn=_worth_retrying,
    task_run_name=_run_name,
)


def _make(name: str) -> Any:
    # No tags: for each, Prefect asks its server for a concurrency slot, which costs an embedded one up to two seconds.
    @_stage_task(name=name)
    def ensure(run: RunSession, iteration: int, stage: str = name) -> Any:
        """Make the stage's artifact exist; *Cached* when the store held it whole."""
        result = run.runner.ensure(stage, iteration, should_stop=lambda: run.stopping)
        reference = {"stage": stage, "iteration": iteration, "digest": result.manifest.digest}
        get_run_logger().info("%s %03d: %s", stage, iteration, result.note)
        if result.cached:
            return Completed(name="Cached", message=result.note, data=reference)
        _publish_table(run, result)
        return reference

    return ensure


explore = _make("explore")
harvest = _make("harvest")
filter_ = _make("filter")
rft = _make("rft")
evaluate = _make("evaluate")


def _publish_table(run: RunSession, result: StageResult) -> None:
    """The stage's key figures as a table in the UI."""
    manifest = result.manifest
    figures = {**manifest.counts, **manifest.metrics, "seconds": manifest.seconds}
    rows = [{"figure": name, "value": _short(value)} for name, value in figures.items() if name != "seconds_by_step"]
    name = f"{run.config.name}-{_place(manifest.iteration)}-{manifest.stage}"
    publish_table(name, rows, f"{manifest.stage} of {name}, {manifest.digest[:12]}")


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)[:500]
