"""What several commands share: options, and how results are printed."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import click

from rloop_core.printable import visible, without_controls

DEFAULT_STORE = ".rloop/store"
BEST = "best"
"""The checkpoint that the run's config chooses, in place of an iteration's number."""

config_option = click.option(
    "--config",
    "config_file",
    required=True,
    metavar="F",
    help="Config file (YAML), such as deployments/configs/demo.yaml.",
)
set_option = click.option(
    "--set", "overrides", multiple=True, metavar="a.b=c", help="Override a config field; may be repeated."
)
store_option = click.option(
    "--store",
    default=DEFAULT_STORE,
    show_default=True,
    metavar="URI",
    help="Object store: a path or s3://bucket/prefix.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")


class KList(click.ParamType):  # type: ignore[type-arg] # generic from click 8.5 on
    """A comma-separated list of positive whole numbers: `1,8,16,32`."""

    name = "K,K,..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """Numbers, sorted, each once."""
        if isinstance(value, tuple):
            return value
        try:
            numbers = sorted({int(part) for part in str(value).split(",") if part.strip()})
        except ValueError:
            self.fail(f"{value!r} is not a list of whole numbers such as 1,8,32", param, ctx)
        if not numbers or numbers[0] < 1:
            self.fail(f"{value!r} needs numbers of at least 1", param, ctx)
        return tuple(numbers)


class Seconds(click.ParamType):  # type: ignore[type-arg]
    """A time: positive and finite."""

    name = "SECONDS"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """A number of seconds."""
        seconds = click.FLOAT.convert(value, param, ctx)
        if not 0 < seconds < math.inf:
            self.fail(f"{value!r} is not a time of more than 0 s", param, ctx)
        return float(seconds)


class Share(click.ParamType):  # type: ignore[type-arg]
    """One of several equal shares of the work: `2/4`."""

    name = "I/N"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        """(i, n), i from 1 to n."""
        if isinstance(value, tuple):
            return value
        number, _, shares = str(value).partition("/")
        if not (number.isdecimal() and shares.isdecimal() and 1 <= int(number) <= int(shares)):
            self.fail(f"{value!r} is not a share such as 2/4, the second of four", param, ctx)
        return int(number), int(shares)


class IterationOrBest(click.ParamType):  # type: ignore[type-arg]
    """The number of an iteration, or `best`."""

    name = "I|best"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        """An iteration from 0, or "best"."""
        if isinstance(value, int):
            return value
        if value == BEST:
            return BEST
        if not str(value).isdecimal():
            self.fail(f"{value!r} is neither an iteration such as 0 nor `best`", param, ctx)
        return int(value)


def print_json(value: Any) -> None:
    """One JSON object on stdout."""
    click.echo(visible(json.dumps(value, indent=1, ensure_ascii=False, default=str)))


def console(stderr: bool = False) -> Any:
    """A rich console that never cuts a table in a pipe, and leaves control characters out."""
    from rich.console import Console
    from rich.segment import Segment

    class Plain(Console):
        def render(self, renderable: Any, options: Any = None) -> Any:
            for one in super().render(renderable, options):
                yield one if one.control else Segment(without_controls(one.text), one.style)

    terminal = (sys.stderr if stderr else sys.stdout).isatty()
    return Plain(stderr=stderr, width=None if terminal else 160, highlight=False, soft_wrap=not terminal)


def cache_folder() -> Path:
    """Where files of remote stores are kept on this machine."""
    return Path(".rloop/scratch/cache")
