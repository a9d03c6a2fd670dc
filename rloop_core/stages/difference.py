"""In which settings and inputs two artifacts of one stage differ, in words."""

from __future__ import annotations

import json
from typing import Any


def difference(old: dict[str, Any], new: dict[str, Any], path: str = "") -> str:
    """The first identity fields in which two artifacts differ, as `a.b: 1 -> 2`, at most three."""
    found = list(_differences(old, new, path))
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    return "; ".join(found[:3]) + more


def _differences(old: Any, new: Any, path: str) -> list[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        keys = sorted(old.keys() | new.keys())
        return [line for key in keys for line in _differences(old.get(key), new.get(key), f"{path}.{key}".lstrip("."))]
    return [] if old == new else [f"{path.removeprefix('config.')}: {_short(old)} -> {_short(new)}"]


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
