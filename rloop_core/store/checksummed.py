"""JSON that tells whether it is what was written: its hash is in it, and covers everything else in it."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

from rloop_core.json_text import parse_json

KEY = "sha256"


def hash_of(content: dict[str, Any]) -> str:
    """`sha256:...` of plain JSON values, however they are laid out in a file."""
    return f"sha256:{hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()}"


def is_hash(value: object) -> bool:
    """Whether a value looks like what `hash_of` returns."""
    return isinstance(value, str) and re.fullmatch(r"sha256:[0-9a-f]{64}", value) is not None


def seal(content: dict[str, Any], indent: int | None = None) -> bytes:
    """A file that `unseal` reads."""
    plain = json.loads(json.dumps(content))
    return json.dumps({**plain, KEY: hash_of(plain)}, indent=indent, ensure_ascii=False).encode()


def unseal(text: bytes) -> dict[str, Any]:
    """What was sealed; files of older releases carry no hash and are taken as they are.

    Raises:
        ValueError: It is no JSON object, or was altered.
    """
    content = parse_json(text)
    if not isinstance(content, dict):
        raise ValueError("it is no JSON object")
    hashes = {name: value for name, value in content.items() if name == KEY or is_hash(value)}
    content.pop(KEY, None)
    if hashes and hashes != {KEY: hash_of(content)}:
        raise ValueError("it was altered: its own hash differs")
    return content
