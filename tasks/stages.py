"""One Prefect task a stage. The store decides whether there is anything to do; Prefect shows what was decided."""

from functools import partial
from typing import Any

from prefect import task
from prefect.artifacts import create_table_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.logging import get_run_logger
from prefect.states import Completed

from rloop_core.errors import StageCrashed
from rloop_core.stages.runner import StageResult
from tasks.session import RunSession


def _worth_retrying(task: Any, run: Any, state: State) -> bool:
    """A crash may pass; an error that names its cause and fix would only come again."""
    error = state.result(raise_on_failure=False)
    return isinstance(error, StageCrashed)


_stage_task = partial(
    task,
    cache_policy=NO_CACHE,
    persist_result=False,
    retries=1,
    retry_delay_seconds=2,
    retry_condition_fn=_worth_retrying,
    task_run_name="{stage}-{iteration:03d}",
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
    rows = [{"figure": name, "value": _short(value)} for name, value in figures.items()]
    key = f"{run.config.name}-{manifest.iteration:03d}-{manifest.stage}".lower()
    create_table_artifact(
        key="".join(letter if letter.isalnum() else "-" for letter in key.replace("-001", "base", 1))
        if manifest.iteration < 0
        else "".join(letter if letter.isalnum() else "-" for letter in key),
        table=rows,
        description=f"{manifest.stage} of iteration {manifest.iteration}, {manifest.digest[:12]}",
    )


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)[:500]
