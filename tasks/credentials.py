"""The store's credentials from a Prefect block, for teams that keep them there: into this process's environment alone.

Without a block the environment, a profile or the machine's role count, as everywhere with S3. The store knows of none.
"""

import os
from collections.abc import Mapping
from typing import Any, cast

from rloop_core.errors import ConfigError

BLOCK = "RLOOP_CREDENTIALS_BLOCK"
"""The environment variable with the block's name: a job variable of a deployment or a work pool, and no secret."""
VARIABLES = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
_FIX = f"""make it: Secret(value={{"{VARIABLES[0]}": "...", "{VARIABLES[1]}": "..."}}).save(NAME)"""


def take_credentials() -> None:
    """Put what the named Secret block holds into the environment, before a store is opened; nothing when none is named.

    Raises:
        ConfigError: There is no such block, or it holds something else; what it holds is not repeated.
    """
    name = os.environ.get(BLOCK)
    if name:
        taken = _checked(name, _read(name))
        for variable in VARIABLES:  # a session token of other keys would spoil these
            os.environ.pop(variable, None)
        os.environ.update(taken)


def _read(name: str) -> Any:
    from prefect.blocks.system import Secret

    try:
        return cast("Secret[Any]", Secret.load(name)).get()
    except ValueError as error:
        raise ConfigError(f"there is no Secret block {name!r}", field=BLOCK, fix=_FIX) from error


def _checked(name: str, held: Any) -> dict[str, str]:
    given = held if isinstance(held, Mapping) else {}
    taken = {variable: given[variable] for variable in VARIABLES if isinstance(given.get(variable), str)}
    if not set(VARIABLES[:2]) <= taken.keys() or len(taken) != len(given):
        what = f"Secret block {name!r} must hold {VARIABLES[0]} and {VARIABLES[1]}, at most {VARIABLES[2]} besides"
        raise ConfigError(what, field=BLOCK, fix=_FIX)
    return taken
