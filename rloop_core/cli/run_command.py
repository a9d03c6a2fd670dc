"""`rloop run`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from rloop_core.cli.options import cache_folder, config_option, console, json_option, print_json, set_option

if TYPE_CHECKING:
    from rloop_core.config import Config

Flow = Callable[..., Any]
_OPTIONS = (
    click.option("--name", default=None, metavar="RUN", help="Name of the run; its folder in the store."),
    click.option("--store", default=None, metavar="URI", help="Object store: a path or s3://bucket/prefix."),
    click.option(
        "--iterations",
        default=None,
        type=click.IntRange(1),
        metavar="N",
        help="Iterations; raising it later continues the run.",
    ),
    click.option(
        "--arm",
        type=click.Choice(["rloop", "vanilla-rl"]),
        default=None,
        help="`vanilla-rl` runs the config's control: as many RL steps in one phase, no fine-tuning; its run is named "
        "so.",
    ),
)


def run_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options that say which run of a config is meant."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@click.command("run")
@config_option
@set_option
@run_options
@click.option("--quiet", is_flag=True, help="No progress; only what came out.")
@click.option("--no-report", is_flag=True, help="Draw no report; `rloop report` does, at any time.")
@json_option
def command(
    config_file: str,
    overrides: tuple[str, ...],
    quiet: bool,
    no_report: bool,
    as_json: bool,
    **which: Any,
) -> None:
    """Run RLoop, or go on with a run: explore, harvest, filter, rft and evaluate for each iteration.

    What the store already holds is not computed again. After any interruption, start the same command again.

    \b
    Examples:
      rloop run --config deployments/configs/demo.yaml
      rloop run --config qwen.yaml --set explore.steps=100 --name short --store s3://bucket/rloop
      rloop run --config qwen.yaml --arm vanilla-rl      # the control at equal compute
    """
    from rloop_core.cli.interrupt import ending_promptly
    from rloop_core.cli.live import watch
    from rloop_core.cli.outcome import outcome_of, show_outcome

    config = load_run(config_file, overrides, **which)
    flow = find_flow()
    started = time.monotonic()
    with ending_promptly(), watch(console(stderr=as_json), quiet=quiet) as watcher:
        flow(config, watcher.on_event)
    outcome = outcome_of(config, watcher, time.monotonic() - started, cache_folder(), report=not no_report)
    if as_json:
        print_json(outcome)
    else:
        show_outcome(outcome, console())


def load_run(
    config_file: str,
    overrides: tuple[str, ...],
    *,
    name: str | None,
    store: str | None,
    iterations: int | None,
    arm: str | None,
) -> Config:
    """The config of the run that `run_options` mean.

    Raises:
        ConfigError: It is unknown, mistyped or impossible.
    """
    from rloop_core.config import as_vanilla, load_config

    # JSON is YAML: a quoted name stays text, whatever it looks like.
    fields = {"name": name, "placement.store": store, "iterations": iterations}
    given = [f"{field}={json.dumps(value)}" for field, value in fields.items() if value is not None]
    config = load_config(config_file, [*overrides, *given])
    return as_vanilla(config) if arm == "vanilla-rl" else config


def find_flow(name: str = "rloop") -> Flow:
    """What the distribution registers under a name in the entry points `rloop.flows`: `rloop` runs, `deploy` deploys.

    Raises:
        ConfigError: None is registered: the package is not installed whole.
    """
    from importlib.metadata import entry_points

    from rloop_core.errors import ConfigError

    found = list(entry_points(group="rloop.flows", name=name))
    if not found:
        fix = "install the package with pip, flows included"
        raise ConfigError("nothing is registered under rloop.flows", field=name, fix=fix)
    flow: Any = found[0].load()
    return flow  # type: ignore[no-any-return]
