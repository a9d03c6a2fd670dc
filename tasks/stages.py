"""One Prefect task a stage. The store decides whether there is anything to do; Prefect shows what was decided."""

from typing import Any

from prefect.client.schemas.objects import State
from prefect.runtime import task_run
from prefect.states import Completed

from rloop_core.errors import StageCrashed, StoreUnavailable
from rloop_core.stages.job import place_of
from tasks.events import warn_if_carried
from tasks.live_progress import shown
from tasks.results import show_result
from tasks.session import RunSession
from tasks.tags import UntaggedTask, untagged_task

_MOST_RETRIES = 1000  # what is worth retrying decides


def _worth_retrying(task: Any, run: Any, state: State) -> bool:
    """A crash and a silent store may pass, `placement.stage_retries` times; other errors would only come again."""
    session: RunSession = task_run.parameters["run"]
    error = state.result(raise_on_failure=False)
    return (
        isinstance(error, (StageCrashed, StoreUnavailable)) and run.run_count <= session.config.placement.stage_retries
    )


RETRIES: dict[str, Any] = {
    "retries": _MOST_RETRIES,
    "retry_delay_seconds": 2,
    "retry_condition_fn": _worth_retrying,
}


def _run_name() -> str:
    """`explore-000`; shown in the UI."""
    parameters = task_run.parameters
    return f"{parameters['stage']}-{place_of(parameters['iteration'])}"


def _make(name: str) -> UntaggedTask:
    @untagged_task(
        name=name,
        task_run_name=_run_name,
        **RETRIES,
    )
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

    return ensure


explore = _make("explore")
harvest = _make("harvest")
filter_ = _make("filter")
rft = _make("rft")
evaluate = _make("evaluate")
