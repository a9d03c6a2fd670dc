"""RLoop (paper, Algorithm 1): iterations that each turn theta_i into theta_{i+1}."""

from prefect import flow

from flows.iteration import rloop_iteration
from rloop_core.config import Config
from rloop_core.stages.run_record import write_run_record
from tasks.session import open_run
from tasks.stages import evaluate, preflight


@flow(name="rloop", flow_run_name="{config.name}")
def rloop(config: Config) -> None:
    """Run or resume all iterations; what the store already holds is not computed again."""
    with open_run(config) as run:
        preflight(run)  # first: a config that cannot run must not replace the record of one that did
        write_run_record(run.runner.store, config)
        for iteration in range(config.iterations):
            rloop_iteration(config, iteration)
        if run.evaluates(config.iterations - 1):
            evaluate(run, config.iterations - 1)
