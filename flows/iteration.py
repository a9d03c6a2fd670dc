"""One iteration of RLoop: explore from theta_i, filter the trajectories, and fine-tune the same theta_i on them."""

from prefect import flow

from rloop_core.config import Config
from tasks.session import open_run
from tasks.stages import concurrent_evaluation, explore, filter_, harvest, rft


@flow(name="rloop-iteration", flow_run_name="iteration-{iteration:03d}")
def rloop_iteration(config: Config, iteration: int) -> None:
    """Run the loop body of Algorithm 1; theta_i is evaluated while the exploration that starts from it runs."""
    with open_run(config) as run, concurrent_evaluation(run, iteration - 1):
        explore(run, iteration)
        harvest(run, iteration)
        filter_(run, iteration)
        rft(run, iteration)
