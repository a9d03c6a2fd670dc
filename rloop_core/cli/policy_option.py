"""The option `--policy NAME=VALUE` of the commands that judge. It needs pydantic, which other commands do without."""

from __future__ import annotations

import re
from typing import Any, get_args

import click

from rloop_core.verifier.policies import DEFAULT, Policies


def _setting(value: str | tuple[str, Any]) -> tuple[str, Any]:
    """Convert NAME=VALUE of one field of the verifier's `Policies` to the name and the checked value."""
    if isinstance(value, tuple):
        return value
    name, equals, text = (part.strip() for part in value.partition("="))
    fields = Policies.model_fields
    if name not in fields or not equals:
        raise click.BadParameter(f"{value!r} is not NAME=VALUE with one of the names {', '.join(fields)}")
    try:
        return name, getattr(Policies.model_validate({name: text}), name)
    except ValueError:
        choices = get_args(fields[name].annotation)
        allowed = " or ".join(map(str, choices)) if choices else "a number of at least 0 and below 1"
        raise click.BadParameter(f"{name} is {allowed}, not {text!r}") from None


def _policies(ctx: click.Context, param: click.Parameter, settings: tuple[tuple[str, Any], ...]) -> Policies:
    """Return the policies of all settings together; the last setting of a name wins."""
    return Policies.model_validate(dict(settings))


def _policy_help() -> str:
    """Return every policy with its values, default and meaning, from the fields themselves."""
    lines = ["What counts as the same answer; may be repeated. Each policy with its default first:"]
    for name, field in Policies.model_fields.items():
        choices = [str(choice) for choice in get_args(field.annotation)]
        default = str(getattr(DEFAULT, name))
        values = "|".join([default, *(choice for choice in choices if choice != default)])
        meaning = re.sub(r"\s+", " ", (field.description or "").replace("`", ""))
        lines.append(f"{name}={values}: {meaning}")
    return "\n\n".join(lines)


policy_option = click.option(
    "--policy", "policies", type=_setting, metavar="NAME=VALUE", multiple=True, callback=_policies, help=_policy_help()
)
"""Passes `policies`, a `Policies`, to the command."""
