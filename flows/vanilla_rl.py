"""The control arm: vanilla RL at equal compute, one phase of as many RL steps as all of RLoop's iterations together."""

from prefect import flow

from flows.attempts import end_earlier_attempts
from rloop_core.config import Config, as_vanilla
from rloop_core.stages.run_record import write_run_record
from tasks.concurrent_evaluation import evaluated_beside
from tasks.preflight import preflight
from tasks.session import open_run
from tasks.stages import evaluate, explore


@flow(name="vanilla-rl", flow_run_name="{config.name}")
def vanilla_rl(config: Config) -> None:
    """Run or resume uninterrupted RL; a config of an RLoop run gives that run's control."""
    config = as_vanilla(config)
    with open_run(config) as run:
        end_earlier_attempts(config)
        preflight(run)
        write_run_record(run.runner.store, config)
        with evaluated_beside(run, -1):
            explore(run, 0)
        if run.evaluates(0):
            evaluate(run, 0)
