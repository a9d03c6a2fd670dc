"""Where a store is; never what opens it."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl

from rloop_core.errors import ConfigError

_SECRET = re.compile(r"key|secret|token|password|passwd|credential|signature|^sig$|^pwd$", re.IGNORECASE)
FIX = "take them out of the URI, and put them into the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY) or a role"


def holds_credentials(uri: str) -> bool:
    """Whether a store's URI has a user, a password or a key in it, as in `s3://id:secret@bucket/prefix`."""
    scheme, separator, rest = uri.partition("://")
    if not separator or scheme in ("file", "memory"):
        return False
    address, _, query = rest.partition("?")
    user, at, _ = address.partition("/")[0].rpartition("@")
    # Azure names a container before the @; nothing else has a name there that would not open something.
    named = bool(at) and (":" in user or not scheme.startswith(("abf", "az")))
    # A secret key may hold slashes, and then the @ comes after the first of them.
    hidden = scheme in ("s3", "s3a") and re.match(r"[^/@]*:[^@]*@", address) is not None
    return named or hidden or any(_SECRET.search(name) for name, _ in parse_qsl(query, keep_blank_values=True))


def refuse_credentials(uri: str) -> None:
    """Refuse a URI that would carry a secret into configs, logs and manifests; the error does not repeat it.

    Raises:
        ConfigError: It holds one.
    """
    if holds_credentials(uri):
        raise ConfigError("credentials do not belong into a store's URI", field="placement.store", fix=FIX)
