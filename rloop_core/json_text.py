"""JSON of unknown origin: of bounded depth, and of text that can be written out again."""

from __future__ import annotations

import json
import math
from typing import Any

DEEPEST = 64
"""Levels of lists and objects; the project's own files have fewer than ten, and a config may have `config.DEEPEST`."""


def parse_json(text: str | bytes, *, finite: bool = False) -> Any:
    """The value of a JSON text (UTF-8).

    Args:
        text: The text.
        finite: Refuse Python's `NaN` and `Infinity`, and numbers too large for a float.

    Raises:
        ValueError: It is no JSON, or what `check_plain` refuses.
    """
    floats: dict[str, Any] = {"parse_float": _finite, "parse_constant": _finite} if finite else {}
    try:
        value = json.loads(text.decode("utf-8-sig") if isinstance(text, bytes) else text, **floats)
    except RecursionError:
        raise ValueError(f"nested deeper than {DEEPEST} levels") from None
    check_plain(value)
    return value


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is no finite number")
    return value


def check_plain(value: Any, deepest: int = DEEPEST) -> None:
    """Refuse plain values that are nested too deeply, or hold text that is no Unicode.

    Raises:
        ValueError: Says which. Half of a surrogate pair, which JSON's `\\ud800` can write, fits in no UTF-8 file.
    """
    level = [value]
    for _ in range(deepest + 1):
        inner: list[Any] = []
        for one in level:
            if isinstance(one, str):
                check_text(one)
            elif isinstance(one, dict):
                inner += one.keys()
                inner += one.values()
            elif isinstance(one, list | tuple):
                inner += one
        if not inner:
            return
        level = inner
    raise ValueError(f"nested deeper than {deepest} levels")


def check_text(text: str) -> str:
    """The text, unless it holds half of a surrogate pair.

    Raises:
        ValueError: There is one.
    """
    try:
        text.isascii() or text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"holds half a character ({text[error.start]!a}), which no file can keep") from None
    return text
