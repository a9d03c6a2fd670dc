"""Text of unknown origin made fit for a log, a message or a page: plain, short, and without secrets."""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Mapping
from functools import lru_cache
from urllib.parse import quote

MASK = "***"
MOST_CHARACTERS = 500
_SHORTEST_SECRET = 6
_SECRET_NAME = re.compile(
    r"SECRET|TOKEN|PASSWORD|PASSWD|CREDENTIAL|WEBHOOK|DSN|API_?KEY|ACCESS_KEY|PRIVATE_KEY|AUTH_STRING|CONNECTION_URL",
    re.IGNORECASE,
)
_NO_SECRET = re.compile(r"(FILE|PATH|_URI|_BLOCK|PARALLELISM)$", re.IGNORECASE)
"""Variables that are named so and hold a place, a name or a switch."""
_ESCAPE = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # colours, cursor
    r"|\x1b[\]PX^_].*?(?:\x07|\x1b\\|$)"  # titles, links, device strings
    r"|\x1b[ -/]*[0-~]?"
)
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")
"""Control characters, and those that hide or reorder what stands beside them; tabs and newlines stay."""
_IN_URI = re.compile(r"(?<=://)[^\s/@:]*:[^\s@]+(?=@)")
_IN_QUERY = re.compile(r"(?i)\b((?:x-amz-)?(?:signature|credential|security-token)=)[^\s&\"']+")


def printable_line(text: str, most: int = MOST_CHARACTERS) -> str:
    """One line that a terminal shows as it is: no escape codes, no control characters, no secrets, at most so long."""
    # Codes go first: a secret may be written with some in between.
    line = " ".join(without_secrets(without_controls(_ESCAPE.sub("", text))).split())
    return line if len(line) <= most else f"{line[: most - 3]}..."


def without_controls(text: str) -> str:
    """The text without characters that a page or terminal would obey or hide."""
    return _UNPRINTABLE.sub("", text)


def visible(text: str) -> str:
    """The text with characters that a page or terminal would obey or hide written out: `\\u202e`."""
    return _UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text.replace("\r\n", "\n"))


def without_secrets(text: str, environment: Mapping[str, str] | None = None) -> str:
    """The text with everything masked that this process's environment keeps secret, and passwords within URIs.

    Args:
        text: Any text.
        environment: In place of this process's own.
    """
    known = os.environ if environment is None else environment
    named = tuple(sorted((name, value) for name, value in known.items() if _names_secret(name)))
    for secret in _forms(named):
        text = text.replace(secret, MASK)
    return _IN_QUERY.sub(rf"\1{MASK}", _IN_URI.sub(MASK, text))


def _names_secret(name: str) -> bool:
    return bool(_SECRET_NAME.search(name)) and not _NO_SECRET.search(name)


@lru_cache(maxsize=8)
def _forms(named: tuple[tuple[str, str], ...]) -> tuple[str, ...]:
    """The secrets as they may appear, longest first: as they are, quoted for a URI, and as HTTP sends a password."""
    found = set()
    for name, value in named:
        found |= {value, base64.b64encode(value.encode(errors="replace")).decode()}
        if "AUTH_STRING" in name.upper():
            found.add(value.partition(":")[2])
        if "://" in value:
            found.add(value.partition("://")[2].rpartition("@")[0].partition(":")[2])
    found |= {quote(secret, safe="") for secret in found}
    return tuple(sorted((one for one in found if len(one) >= _SHORTEST_SECRET), key=len, reverse=True))
