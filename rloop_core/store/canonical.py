"""Canonical JSON and hashes: equal values give equal bytes on every machine, and what has no such form is refused."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

_CHUNK = 1 << 20


def canonical_json(value: Any) -> bytes:
    """The one JSON form of a plain value: sorted keys, no spaces, UTF-8.

    Raises:
        TypeError: A value that JSON cannot carry unchanged (a tuple, a set, an object, a non-string key).
        ValueError: NaN or infinity.
    """
    _require_plain(value, "value")
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def _require_plain(value: Any, where: str) -> None:
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise TypeError(f"{where}: key {key!r} is not a string")
            _require_plain(item, f"{where}.{key}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _require_plain(item, f"{where}[{index}]")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{where}: {value} has no JSON form")
    elif value is not None and not isinstance(value, (str, int)):
        raise TypeError(f"{where}: a {type(value).__name__} has no canonical form")


def fingerprint(identity: Mapping[str, Any]) -> str:
    """Hash of everything that determines an artifact's content (hex sha256 of its canonical JSON)."""
    return hashlib.sha256(canonical_json(dict(identity))).hexdigest()


def file_sha256(path: str | Path) -> str:
    """Hex sha256 of a local file, read in pieces."""
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def content_digest(files: Iterable[tuple[str, str]]) -> str:
    """Digest of an artifact from its files' (relative path, sha256) pairs, whatever their order.

    Nothing but the contents and their names inside the artifact enters: not the run, the store, time or machine.
    """
    return hashlib.sha256(canonical_json([[path, sha] for path, sha in sorted(files)])).hexdigest()
