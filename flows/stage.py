"""One stage of a run, on a worker of another pool than the run's own; the run starts it, as `placement.pools` says."""

from typing import Any

from prefect import flow
from prefect.runtime import flow_run
from prefect.states import Cancelled

from flows.worker_watchdog import outlives_worker
from rloop_core.config import make_config
from rloop_core.config.placement import StageName
from rloop_core.stages.job import place_of
from rloop_core.stages.remote import RemoteStage
from rloop_core.stages.remote_worker import NoLongerWanted, compute_remote_stage
from rloop_core.stages.runner import StageRunner
from rloop_core.store import Store
from tasks.credentials import take_credentials
from tasks.gpu_concurrency import run_in_turn
from tasks.live_progress import shown
from tasks.results import show_result
from tasks.session import RunSession, announce


def _name() -> str:
    """`explore-000`, as the task of the run that waits for it is called."""
    given = flow_run.parameters
    return f"{given['stage']}-{place_of(int(given['iteration']))}"


@flow(name="rloop-stage", flow_run_name=_name, persist_result=False)
def rloop_stage(store: str, run: str, stage: StageName, iteration: int, order: str) -> Any:
    """Compute a stage for a run that waits for it; not to be started by hand.

    Args:
        store: The run's object store.
        run: The run's name.
        stage: The stage.
        iteration: Its iteration; -1 for the evaluation of theta_0.
        order: Which of the run's orders this is.
    """
    take_credentials()
    remote = RemoteStage(Store(store), run, stage, iteration, order)
    wanted = remote.take()
    config = make_config(wanted.config)
    session = RunSession(config, StageRunner(config, remote.store, None))
    title = f"{run}-{place_of(iteration)}-{stage}"
    try:
        with outlives_worker(), shown(session, stage, iteration, title) as progress:
            manifest = compute_remote_stage(remote, wanted, announce, run_in_turn)
        if progress.losses:  # which its run has not seen
            show_result(session, manifest, title, progress.losses)
    except NoLongerWanted as error:
        return Cancelled(message=str(error))
    finally:
        session.close(hasty=False)
    return {"stage": stage, "iteration": iteration, "digest": manifest.digest}
