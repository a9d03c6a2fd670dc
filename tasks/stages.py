"""One Prefect task a stage. The store decides whether there is anything to do; Prefect shows what was decided."""

from functools import partial
from typing import Any

from prefect import Task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.runtime import task_run
from prefect.states import Completed

from rloop_core.errors import StageCrashed, StoreUnavailable
from rloop_core.stages.errand import place_of
from tasks.events import warn_if_carried
from tasks.labels import tagged
from tasks.results import show_result
from tasks.session import RunSession
from tasks.shown import shown

_MOST_RETRIES = 1000  # what is worth retrying decides


def _worth_retrying(task: Any, run: Any, state: State) -> bool:
    """A crash and a silent store may pass, `placement.stage_retries` times; other errors would only come again."""
    session: RunSession = task_run.parameters["run"]
    error = state.result(raise_on_failure=False)
    return (
        isinstance(error, (StageCrashed, StoreUnavailable)) and run.run_count <= session.config.placement.stage_retries
    )


def _run_name() -> str:
    """`explore-000`; shown in the UI."""
    parameters = task_run.parameters
    return f"{parameters['stage']}-{place_of(parameters['iteration'])}"


class StageTask(Task[..., Any]):
    """A task whose runs carry the stage's name as a tag, where there is a UI to look for it.

    For its tags a task asks the server for a concurrency slot, which costs an embedded server up to two seconds.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run it here and now."""
        with tagged(self.name):
            return super().__call__(*args, **kwargs)

    def submit(self, *args: Any, **kwargs: Any) -> Any:
        """Run it beside the flow."""
        with tagged(self.name):
            return super().submit(*args, **kwargs)


_stage_task = partial(
    StageTask,
    cache_policy=NO_CACHE,
    persist_result=False,
    retries=_MOST_RETRIES,
    retry_delay_seconds=2,
    retry_condition_fn=_worth_retrying,
    task_run_name=_run_name,
)


def _make(name: str) -> StageTask:
    def ensure(run: RunSession, iteration: int, stage: str = name) -> Any:
        """Make the stage's artifact exist; *Cached* when the store held it whole."""
        title = f"{run.config.name}-{place_of(iteration)}-{stage}"
        with shown(run, stage, iteration, title) as progress:
            result = run.runner.ensure(stage, iteration, should_stop=lambda: run.stopping)
        reference = {"stage": stage, "iteration": iteration, "digest": result.manifest.digest}
        run.manifests[iteration, stage] = result.manifest
        if result.cached:
            return Completed(name="Cached", message=result.note, data=reference)
        show_result(run, result.manifest, title, progress.losses)
        warn_if_carried(result.manifest)
        return reference

    return _stage_task(ensure, name=name)


explore = _make("explore")
harvest = _make("harvest")
filter_ = _make("filter")
rft = _make("rft")
evaluate = _make("evaluate")
