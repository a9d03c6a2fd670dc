"""Options and parameter types that several commands share."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import click

DEFAULT_STORE = ".rloop/store"
CACHE_FOLDER = Path(".rloop/scratch/cache")
"""Where this machine keeps files of remote stores."""
BEST = "best"
"""Selects the checkpoint that the run's config chooses, in place of an iteration's number."""

config_option = click.option(
    "--config", "config_file", required=True, metavar="F",
    help="Config file (YAML), such as deployments/configs/demo.yaml.",
)  # fmt: skip
set_option = click.option(
    "--set", "overrides", multiple=True, metavar="a.b=c", help="Override a config field; may be repeated."
)
store_option = click.option(
    "--store", default=DEFAULT_STORE, show_default=True, metavar="URI",
    help="Object store: a path or s3://bucket/prefix.",
)  # fmt: skip
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")


class Type(click.ParamType):  # type: ignore[type-arg] # generic from click 8.5 on
    """A parameter type that also accepts a default that is converted already."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the value of an option's text."""
        return self.parse(value, param, ctx) if isinstance(value, str) else value

    def parse(self, text: str, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the value, or call `fail`."""
        raise NotImplementedError


class KList(Type):
    """A comma-separated list of positive whole numbers, such as `1,8,16,32`: sorted, each once."""

    name = "K,K,..."

    def parse(self, text: str, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """Return the numbers."""
        try:
            numbers = sorted({int(part) for part in text.split(",") if part.strip()})
        except ValueError:
            self.fail(f"{text!r} is not a list of whole numbers such as 1,8,32", param, ctx)
        if not numbers or numbers[0] < 1:
            self.fail(f"{text!r} needs numbers of at least 1", param, ctx)
        return tuple(numbers)


class Names(Type):
    """A comma-separated list of names."""

    name = "NAME,NAME,..."

    def parse(self, text: str, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        """Return the names, in order."""
        return tuple(part for part in text.split(",") if part)


class Seconds(Type):
    """A number of seconds: positive and finite."""

    name = "SECONDS"

    def parse(self, text: str, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the seconds."""
        try:
            seconds = float(text)
        except ValueError:
            seconds = math.nan
        if not 0 < seconds < math.inf:
            self.fail(f"{text!r} is not a time of more than 0 s", param, ctx)
        return seconds


class Age(Type):
    """A time span in seconds, from `90s`, `30m`, `24h` or `7d`."""

    name = "AGE"
    _UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}  # noqa: RUF012

    def parse(self, text: str, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the seconds."""
        match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text.strip())
        if not match:
            self.fail(f"{text!r} is not a time span such as 24h; units are s, m, h and d", param, ctx)
        return float(match[1]) * self._UNITS[match[2]]


class Share(Type):
    """One of n equal shares of the work, from `2/4`: (i, n), i from 1 to n."""

    name = "I/N"

    def parse(self, text: str, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        """Return (i, n)."""
        number, _, shares = text.partition("/")
        if not (number.isdecimal() and shares.isdecimal() and 1 <= int(number) <= int(shares)):
            self.fail(f"{text!r} is not a share such as 2/4, the second of four", param, ctx)
        return int(number), int(shares)


class IterationOrBest(Type):
    """The number of an iteration, from 0, or `best`."""

    name = "I|best"

    def parse(self, text: str, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        """Return the number or `best`."""
        if text == BEST:
            return BEST
        if not text.isdecimal():
            self.fail(f"{text!r} is neither an iteration such as 0 nor `best`", param, ctx)
        return int(text)
