"""Options and parameter types that several commands share."""

from __future__ import annotations

import math
from pathlib import Path

import click

CACHE_FOLDER = Path(".rloop/scratch/cache")
"""Local copies of files of remote stores."""
BEST = "best"
"""Selects the checkpoint that the run's config chooses, in place of an iteration's number."""
FILE = click.Path(dir_okay=False, path_type=Path)
FOLDER = click.Path(path_type=Path)
COUNT = click.IntRange(1)

set_option = click.option(
    "--set", "overrides", multiple=True, metavar="a.b=c", help="Override a config field; may be repeated."
)
store_option = click.option(
    "--store", default=".rloop/store", show_default=True, metavar="URI",
    help="Object store: a path or s3://bucket/prefix.",
)  # fmt: skip
workers_option = click.option(
    "--workers", default=1, show_default=True, type=COUNT, help="Processes of the math engine; each can be killed."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")


# Parameter types. Click converts a default too, so each function returns what is converted already.


def k_list(value: str | tuple[int, ...]) -> tuple[int, ...]:
    """Convert a comma-separated list of positive whole numbers, such as `1,8,16,32`: sorted, each once."""
    if isinstance(value, tuple):
        return value
    try:
        numbers = sorted({int(part) for part in value.split(",") if part.strip()})
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a list of whole numbers such as 1,8,32") from None
    if not numbers or numbers[0] < 1:
        raise click.BadParameter(f"{value!r} needs numbers of at least 1")
    return tuple(numbers)


def names(value: str | tuple[str, ...]) -> tuple[str, ...]:
    """Convert a comma-separated list of names."""
    return value if isinstance(value, tuple) else tuple(part for part in value.split(",") if part)


def seconds(value: str | float) -> float:
    """Convert a number of seconds, positive and finite."""
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise click.BadParameter(f"{value!r} is not a time of more than 0 s")
    return number


def share(value: str | tuple[int, int]) -> tuple[int, int]:
    """Convert `2/4`, the second of four equal shares, to (i, n), i from 1 to n."""
    if isinstance(value, tuple):
        return value
    number, _, shares = value.partition("/")
    if not (number.isdecimal() and shares.isdecimal() and 1 <= int(number) <= int(shares)):
        raise click.BadParameter(f"{value!r} is not a share such as 2/4, the second of four")
    return int(number), int(shares)


def iteration_or_best(value: str) -> int | str:
    """Convert the number of an iteration, from 0, or `best`."""
    if value != BEST and not value.isdecimal():
        raise click.BadParameter(f"{value!r} is neither an iteration such as 0 nor `best`")
    return value if value == BEST else int(value)
