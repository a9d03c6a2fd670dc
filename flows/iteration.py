"""One iteration of RLoop: explore from theta_i, keep what was found, and refine the very same theta_i."""

from prefect import flow

from rloop_core.config import Config
from tasks.concurrent_evaluation import evaluated_beside
from tasks.session import open_run
from tasks.stages import explore, filter_, harvest, rft


@flow(name="rloop-iteration", flow_run_name="iteration-{iteration:03d}")
def rloop_iteration(config: Config, iteration: int) -> None:
    """Algorithm 1's loop body; theta_i is evaluated beside the exploration that starts from it, not before it."""
    with open_run(config) as run, evaluated_beside(run, iteration - 1):
        explore(run, iteration)
        harvest(run, iteration)
        filter_(run, iteration)
        rft(run, iteration)
