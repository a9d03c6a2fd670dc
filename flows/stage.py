"""One stage of a run on a worker of another pool, as `placement.pools` says. The run starts this flow and waits."""

from typing import Any

from prefect import flow
from prefect.runtime import flow_run
from prefect.states import Cancelled

from rloop_core.config import make_config
from rloop_core.config.placement import StageName
from rloop_core.stages.job import place_of
from rloop_core.stages.remote import RemoteStage
from rloop_core.stages.remote_worker import NoLongerWanted, compute_remote_stage
from rloop_core.stages.runner import StageRunner
from rloop_core.store import Store
from tasks.artifacts import show_result
from tasks.credentials import take_credentials
from tasks.gpu_concurrency import run_within_limit
from tasks.live_progress import live_progress
from tasks.prefect_workarounds import survive_worker
from tasks.session import RunSession, announce


def _name() -> str:
    """Return the name of the waiting task: `explore-000`."""
    parameters = flow_run.parameters
    return f"{parameters['stage']}-{place_of(int(parameters['iteration']))}"


@flow(name="rloop-stage", flow_run_name=_name, persist_result=False)
def rloop_stage(store: str, run: str, stage: StageName, iteration: int, request: str) -> Any:
    """Compute a stage for a run that waits for it. Do not start it by hand.

    Args:
        store: The run's object store.
        run: The run's name.
        stage: The stage.
        iteration: Its iteration; -1 for the evaluation of theta_0.
        request: Name of the run's request.
    """
    take_credentials()
    remote = RemoteStage(Store(store), run, stage, iteration, request)
    wanted = remote.take()
    config = make_config(wanted.config)
    session = RunSession(config, StageRunner(config, remote.store, None))
    title = f"{run}-{place_of(iteration)}-{stage}"
    try:
        with survive_worker(), live_progress(session, stage, iteration, title) as progress:
            manifest = compute_remote_stage(remote, wanted, announce, run_within_limit)
        if progress.losses:  # the run itself does not get them
            show_result(session, manifest, title, progress.losses)
    except NoLongerWanted as error:
        return Cancelled(message=str(error))
    finally:
        session.close(hasty=False)
    return {"stage": stage, "iteration": iteration, "digest": manifest.digest}
