"""RLoop and its control with the parameters of a deployment: a form of a few fields instead of a config object."""

from collections.abc import Callable
from typing import Any

from prefect import Flow, flow, get_client
from prefect.client.schemas.objects import State
from prefect.logging import get_run_logger
from prefect.runtime import flow_run
from prefect.states import Completed, Crashed, Failed

from flows import rloop as algorithm
from flows import vanilla_rl as control
from flows.run_form import ConfigName, Override, config_from, form_run_name
from flows.server_errors import DELETED, server_was_gone, was_deleted
from rloop_core.config import Config, as_vanilla
from rloop_core.config.placement import StoreUri
from rloop_core.config.tree import Iterations, RunName
from rloop_core.errors import cause_of
from rloop_core.printable import printable_line
from tasks.credentials import take_credentials
from tasks.prefect_workarounds import log_errors_in_one_line
from tasks.report import report
from tasks.session import open_run

MOST_CHARACTERS = 1000
_FIELDS = """
    Args:
        config_file: A config of deployments/configs, by its file name.
        config: A whole config of your own in place of that file; only `problems` is required.
        overrides: Changes to single fields, such as `explore.steps=20`, in order.
        name: Name of the run, its folder in the store; `{date}` in it is the day of its scheduled start (UTC), and a
            control's ends with `-vanilla-rl`. Null takes the config's.
        iterations: Iterations of RLoop; raising it later continues the run. Null takes the config's.
        store: Object store, such as s3://bucket/prefix; null takes the config's. No secrets in it.
        replace: Compute finished stages of this name again if this form wants others, and replace them; without it such
            a start is refused.
    """


def _deployable(arm: Flow[[Config], None], summary: str) -> Flow[..., Any]:
    """Return a flow of the arm's name that takes the form; Prefect makes the form from signature and docstring."""

    def start(
        config_file: ConfigName = "demo",
        config: Config | None = None,
        overrides: list[Override] = [],  # noqa: B006 - the form needs a list; nobody changes it
        name: RunName | None = None,
        iterations: Iterations | None = None,
        store: StoreUri | None = None,
        replace: bool = False,
    ) -> Any:
        return _run(arm.fn, config_file, config, overrides, name, iterations, store, replace)

    start.__doc__ = f"{summary}\n{_FIELDS}"
    return flow(name=arm.name, flow_run_name=form_run_name)(start)


iterate = _deployable(
    algorithm.rloop, "Run RLoop, or resume a run of the same name: what the store already holds is not computed again."
)
vanilla_rl = _deployable(
    control.vanilla_rl, "Run or resume the control of an RLoop run: as many RL steps in one phase, from the same form."
)


def _run(arm: Callable[[Config], None], config_file: str, config: Config | None, *fields: Any) -> State:
    """Run an arm and its report; the message of the returned state is the result, or what to do."""
    log_errors_in_one_line()
    try:
        take_credentials()
        run_config = config_from(config_file, config, *fields, start=flow_run.scheduled_start_time)
        run_config = as_vanilla(run_config) if arm is control.vanilla_rl.fn else run_config
        _tag(run_config.name, *([] if config else [config_file]))
        with open_run(run_config) as run:
            arm(run_config)
            reported = report(run, return_state=True)
    except Exception as error:
        cause = cause_of(error)
        if cause is not None:
            get_run_logger().error("failed", exc_info=error)  # one line: see OneLineErrors
            return Failed(message=printable_line(str(cause), MOST_CHARACTERS), data=cause)
        if server_was_gone(error):
            return Crashed(message=printable_line(f"the Prefect server was gone: {error}", MOST_CHARACTERS))
        if was_deleted(error):
            return Crashed(message=DELETED)
        raise
    if reported.is_completed():
        return Completed(message=reported.result())
    return Completed(message=f"complete; its report could not be written: {printable_line(str(reported.message))}")


def _tag(*names: str) -> None:
    """Add tags to the current flow run, by which it is found in the UI.

    Its tasks get none: for a task run's tags Prefect asks the server for concurrency slots once, and without an answer
    the run would fail.
    """
    try:
        with get_client(sync_client=True) as client:
            client.update_flow_run(flow_run.id, tags=sorted({*flow_run.tags, *names}))
    except Exception as error:  # a missing tag must not fail the run
        get_run_logger().warning("the run could not be tagged: %s", error)
