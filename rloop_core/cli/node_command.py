"""`rloop node`."""

from __future__ import annotations

from typing import Any

import click

from rloop_core.cli.options import config_option, set_option
from rloop_core.cli.run_command import load_run, run_options


@click.command("node")
@config_option
@set_option
@run_options
@click.option(
    "--idle",
    "idle_minutes",
    default=30.0,
    show_default=True,
    type=click.FloatRange(0.0),
    metavar="MINUTES",
    help="End when no run has shown itself for so long.",
)
def command(config_file: str, overrides: tuple[str, ...], idle_minutes: float, **which: Any) -> None:
    """Lend this machine to a run that several machines compute: its stages explore and rft.

    Start `rloop run` on one machine and this, with the same options, on every other one; in any order. It waits for
    the run in placement.scratch, which must be a folder that all of them see under the same path, computes its share
    of each stage that trains, and waits for the next. It ends when the run has ended, after --idle minutes without
    one, or by Ctrl-C, which ends the stage under way on all machines. A run that was killed finds it again when it is
    started again.

    Whoever can write into that folder decides what is computed here.

    \b
    Example:
      # two machines of eight GPUs each
      rloop run  --config qwen.yaml --set placement.machines=2 --set placement.processes=16 \\
                 --set placement.scratch=/shared/rloop
      rloop node --config qwen.yaml --set placement.machines=2 --set placement.processes=16 \\
                 --set placement.scratch=/shared/rloop
    """
    from rloop_core.cli.interrupt import ending_promptly
    from rloop_core.errors import ConfigError
    from rloop_core.machines.node import serve

    config = load_run(config_file, overrides, **which)
    if config.placement.machines == 1:
        what, fix = "the run is one machine's", "set it to how many there are, here and in `rloop run`"
        raise ConfigError(what, field="placement.machines", fix=fix)
    with ending_promptly():
        why = serve(config, lambda line: click.echo(f"rloop node: {line}"), 60 * idle_minutes)
    click.echo(f"rloop node: {why}")
