"""Take the store's credentials from a Prefect Secret block into this process's environment.

Without a block S3 looks for credentials as usual: environment, profile, the machine's role.
"""

import os
from collections.abc import Mapping
from typing import Any, cast

from rloop_core.errors import ConfigError
from rloop_core.runtime.environment import reach_loopback

BLOCK = "RLOOP_CREDENTIALS_BLOCK"
"""The environment variable with the block's name: a job variable of a deployment or work pool, and no secret."""
VARIABLES = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
_FIX = f"""make it: Secret(value={{"{VARIABLES[0]}": "...", "{VARIABLES[1]}": "..."}}).save(NAME)"""


def take_credentials() -> None:
    """Put the values of the named Secret block into the environment; call it before a store is opened.

    A store on loopback is reached without a proxy.

    Raises:
        ConfigError: There is no such block, or it holds something else; the error does not repeat its values.
    """
    reach_loopback()
    name = os.environ.get(BLOCK)
    if name:
        credentials = _checked(name, _read(name))
        for variable in VARIABLES:  # the session token of other keys would make these invalid
            os.environ.pop(variable, None)
        os.environ.update(credentials)


def _read(name: str) -> Any:
    from prefect.blocks.system import Secret

    try:
        return cast("Secret[Any]", Secret.load(name)).get()
    except ValueError as error:
        raise ConfigError(f"there is no Secret block {name!r}", field=BLOCK, fix=_FIX) from error


def _checked(name: str, value: Any) -> dict[str, str]:
    values = value if isinstance(value, Mapping) else {}
    credentials = {variable: values[variable] for variable in VARIABLES if isinstance(values.get(variable), str)}
    if not set(VARIABLES[:2]) <= credentials.keys() or len(credentials) != len(values):
        what = f"Secret block {name!r} must hold {VARIABLES[0]} and {VARIABLES[1]}, at most {VARIABLES[2]} besides"
        raise ConfigError(what, field=BLOCK, fix=_FIX)
    return credentials
