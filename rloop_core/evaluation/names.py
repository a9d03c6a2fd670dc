"""Names of metrics: `avg@32`, `pass@8`, `majority@32`; `avg@8-32` where problems have unequal numbers of samples."""

from __future__ import annotations

from collections.abc import Iterable

_KINDS = {"avg": 0, "pass": 1, "majority": 2}


def metric_order(name: str) -> tuple[int, int]:
    """Sorts names as `outcomes.summarise` has them, whatever their order in a file; unknown ones come last."""
    kind, _, number = name.partition("@")
    first = number.partition("-")[0]
    return _KINDS.get(kind, len(_KINDS)), int(first) if first.isdecimal() else 0


def metric_name(names: Iterable[str], by: str) -> str | None:
    """The first of the names that is `avg` or `pass@k`; None where there is none."""
    return next((name for name in names if name == by or (by == "avg" and name.startswith("avg@"))), None)
