"""The command group `rloop`: imports a command when it is called, and turns errors into one line and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module

import click

from rloop_core import __version__
from rloop_core.cli.interrupt import INTERRUPTED, LINE
from rloop_core.errors import RLoopError
from rloop_core.runtime.environment import reach_loopback

COMMANDS: dict[str, str] = {
    "run": "Run or resume: explore, harvest, filter, rft and evaluate, iteration by iteration.",
    "plan": "Estimate rollouts, tokens, storage, memory and hours; touches nothing.",
    "status": "Show which stages are done, running or missing, with their key figures.",
    "problems": "Check a problem set: counts, bad gold answers, and problems that evaluation sets hold too.",
    "verify": "Judge completions: JSON lines on stdin, verdicts on stdout.",
    "evaluate": "Sample from a model on a problem set and score it: avg@k, pass@k.",
    "score": "Score completions that you already have: avg@k, pass@k.",
    "report": "Write an HTML report of a run, or of a run against its control, with PNG and CSV files.",
    "study": "Run arms x seeds, and report with intervals over problems and seeds.",
    "deploy": "Set up work pools and deployments on a Prefect server, from deployments/.",
    "gc": "Delete what no manifest of a store refers to; lists it and asks first.",
    "export": "Write the final policy with a model card, to a folder or the hub.",
}
"""Every command with its line of help; the command itself is `rloop_core.cli.<name>_command:command`."""


class LazyGroup(click.Group):
    """A group that imports a command's module when the command is called, so that `--help` is instant."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Commands in the order in which a user meets them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(f"rloop_core.cli.{cmd_name}_command").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, with a hint for a mistyped command."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            import difflib

            near = difflib.get_close_matches(args[0], COMMANDS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(COMMANDS)}."
            ctx.fail(f"No such command {args[0]!r}; {hint}")
        return super().resolve_command(ctx, args)


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Start with: rloop run --config deployments/configs/demo.yaml (and rloop run --help explains it)",
)
@click.version_option(__version__, prog_name="rloop")
def group() -> None:
    """Train a reasoning policy against verifiable rewards, in a loop that does not collapse.

    One iteration explores with RL, keeps the correct solutions of hard problems, and fine-tunes the policy that it
    started from on them. After any interruption, start the same command again: it continues from there.
    """


def main(args: Sequence[str] | None = None) -> None:
    """Run the command line; always ends with SystemExit.

    An `RLoopError` prints one line and exits with its code, Ctrl-C with 130, a reader that went away with 141.
    """
    reach_loopback()
    try:
        code = group.main(args=args, prog_name="rloop", standalone_mode=False)
        sys.stdout.flush()
    except RLoopError as error:
        _fail(" ".join(str(error).split()), error.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        _fail(LINE, INTERRUPTED)
    except BrokenPipeError:
        # Otherwise Python complains a second time when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    sys.exit(code if isinstance(code, int) else 0)


def _fail(line: str, code: int) -> None:
    click.echo(f"rloop: {line}", err=True)
    sys.exit(code)
