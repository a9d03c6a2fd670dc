"""Where a store is; never what opens it."""

from __future__ import annotations

import os
import re
from urllib.parse import parse_qsl

from rloop_core.errors import ConfigError

_SECRET = re.compile(r"key|secret|token|password|passwd|credential|signature|^sig$|^pwd$", re.IGNORECASE)
FIX = "take them out of the URI, and put them into the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY) or a role"


def _in_any_case(words: str) -> str:
    """JSON Schema's patterns have no flag for it."""
    return "".join(f"[{one}{one.upper()}]" if one.isalpha() else one for one in words)


_NAMES = _in_any_case("[^&=]*(?:key|secret|token|password|passwd|credential|signature)|sig=|pwd=")
CREDENTIALS = (
    r"(?!file://|memory://)(?:"
    rf"[^/?]*://(?:[^/?]*:[^/?]*@|[^?]*\?(?:[\s\S]*&)?(?:{_NAMES}))"
    r"|s3a?://[^/@?]*:[^@?]*@"
    r"|(?!az|abf)[^/?]*://[^/?]*@)"
)
"""What `holds_credentials` finds, as a regular expression without flags, for forms that must refuse it unread."""


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


def refuse_endpoint_credentials() -> None:
    """Refuse an endpoint of S3 that holds more than an address: errors repeat it, and S3 takes no such credentials.

    Raises:
        ConfigError: It does; the error does not repeat it.
    """
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"):
        if set("@?") & set(os.environ.get(name, "")):
            raise ConfigError("an endpoint is an address alone, without credentials", field=name, fix=FIX)
