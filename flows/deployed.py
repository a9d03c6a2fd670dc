"""RLoop and its control as a deployment starts them: from a form of few fields, where nobody holds a config object."""

from prefect import flow

from flows import rloop as algorithm
from flows import vanilla_rl as control
from flows.run_form import ConfigName, Iterations, Override, RunName, config_from, form_run_name
from rloop_core.config import Config


@flow(name="rloop", flow_run_name=form_run_name)
def iterate(
    config_file: ConfigName = "demo",
    config: Config | None = None,
    overrides: list[Override] = [],  # noqa: B006 - the form needs a list; nobody changes it
    name: RunName | None = None,
    iterations: Iterations | None = None,
    store: str | None = None,
) -> None:
    """Run RLoop, or go on with a run of the same name: what the store already holds is not computed again.

    Args:
        config_file: A config of deployments/configs, by its file name.
        config: A whole config of your own in place of that file; only `problems` is required.
        overrides: Changes to single fields, such as `explore.steps=20`, in order.
        name: Name of the run, its folder in the store; null takes the config's.
        iterations: Iterations; raising it later continues the run. Null takes the config's.
        store: Object store, such as s3://bucket/prefix; null takes the config's. No secrets in it.
    """
    algorithm.rloop.fn(config_from(config_file, config, overrides, name, iterations, store))


@flow(name="vanilla-rl", flow_run_name=form_run_name)
def vanilla_rl(
    config_file: ConfigName = "demo",
    config: Config | None = None,
    overrides: list[Override] = [],  # noqa: B006
    name: RunName | None = None,
    iterations: Iterations | None = None,
    store: str | None = None,
) -> None:
    """Run or resume the control of an RLoop run: as many RL steps in one phase, from the very same form.

    Args:
        config_file: A config of deployments/configs, by its file name.
        config: A whole config of your own in place of that file; only `problems` is required.
        overrides: Changes to single fields, such as `explore.steps=20`, in order.
        name: Name of the RLoop run; the control's own ends with `-vanilla-rl`. Null takes the config's.
        iterations: Iterations of the RLoop run, which give the number of RL steps. Null takes the config's.
        store: Object store, such as s3://bucket/prefix; null takes the config's. No secrets in it.
    """
    control.vanilla_rl.fn(config_from(config_file, config, overrides, name, iterations, store))
