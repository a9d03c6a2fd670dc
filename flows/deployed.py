"""RLoop and its control as a deployment starts them: from a form of few fields, where nobody holds a config object."""

from collections.abc import Callable
from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Completed, Crashed, Failed

from flows import rloop as algorithm
from flows import vanilla_rl as control
from flows.run_form import ConfigName, Iterations, Override, RunName, config_from, form_run_name
from flows.server_trouble import DELETED, server_was_gone, was_deleted
from flows.worker_watchdog import outlives_worker
from rloop_core.config import Config, as_vanilla
from rloop_core.config.placement import StoreUri
from rloop_core.errors import cause_of
from rloop_core.printable import printable_line
from tasks.credentials import take_credentials
from tasks.report import report
from tasks.session import open_run
from tasks.tags import labelled

MOST_CHARACTERS = 1000


@flow(name="rloop", flow_run_name=form_run_name)
def iterate(
    config_file: ConfigName = "demo",
    config: Config | None = None,
    overrides: list[Override] = [],  # noqa: B006 - the form needs a list; nobody changes it
    name: RunName | None = None,
    iterations: Iterations | None = None,
    store: StoreUri | None = None,
) -> Any:
    """Run RLoop, or go on with a run of the same name: what the store already holds is not computed again.

    Args:
        config_file: A config of deployments/configs, by its file name.
        config: A whole config of your own in place of that file; only `problems` is required.
        overrides: Changes to single fields, such as `explore.steps=20`, in order.
        name: Name of the run, its folder in the store; null takes the config's.
        iterations: Iterations; raising it later continues the run. Null takes the config's.
        store: Object store, such as s3://bucket/prefix; null takes the config's. No secrets in it.
    """
    return _run(algorithm.rloop.fn, config_file, config, overrides, name, iterations, store)


@flow(name="vanilla-rl", flow_run_name=form_run_name)
def vanilla_rl(
    config_file: ConfigName = "demo",
    config: Config | None = None,
    overrides: list[Override] = [],  # noqa: B006
    name: RunName | None = None,
    iterations: Iterations | None = None,
    store: StoreUri | None = None,
) -> Any:
    """Run or resume the control of an RLoop run: as many RL steps in one phase, from the very same form.

    Args:
        config_file: A config of deployments/configs, by its file name.
        config: A whole config of your own in place of that file; only `problems` is required.
        overrides: Changes to single fields, such as `explore.steps=20`, in order.
        name: Name of the RLoop run; the control's own ends with `-vanilla-rl`. Null takes the config's.
        iterations: Iterations of the RLoop run, which give the number of RL steps. Null takes the config's.
        store: Object store, such as s3://bucket/prefix; null takes the config's. No secrets in it.
    """
    return _run(control.vanilla_rl.fn, config_file, config, overrides, name, iterations, store)


def _run(arm: Callable[[Config], None], config_file: str, config: Config | None, *form: Any) -> State:
    """Run an arm and report on it; the run's last state says in one sentence what came out, or what to do."""
    try:
        take_credentials()
        asked = config_from(config_file, config, *form)
        asked = as_vanilla(asked) if arm is control.vanilla_rl.fn else asked
        labels = [asked.name, *([] if config else [config_file])]
        with outlives_worker(), labelled(*labels), open_run(asked) as run:
            arm(asked)
            reported = report(run, return_state=True)
    except Exception as error:
        cause = cause_of(error)
        if cause is None and server_was_gone(error):
            return Crashed(message=printable_line(f"the Prefect server was gone: {error}", MOST_CHARACTERS))
        if cause is None and was_deleted(error):
            return Crashed(message=DELETED)
        if cause is None:
            raise
        return Failed(message=printable_line(str(cause), MOST_CHARACTERS), data=cause)
    if reported.is_completed():
        return Completed(message=reported.result())
    return Completed(message=f"complete; its report could not be written: {printable_line(str(reported.message))}")
