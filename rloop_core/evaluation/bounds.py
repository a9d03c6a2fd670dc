"""What avg@n and pass@n allow pass@k to be: a table that breaks this cannot come from one set of samples.

Of n samples of each problem, c are correct. avg@n fixes the mean of c, pass@n the share of problems with c >= 1. A
problem's pass@k is concave in c, so with both fixed the mean is greatest where all solved problems are equally easy,
and least where some have a single correct sample and the others have n.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rloop_core.errors import StageError
from rloop_core.evaluation.metrics import pass_at_k

_ROUNDING = 1e-9


def pass_at_k_bounds(avg: float, pass_n: float, n: int, k: int) -> tuple[float, float]:
    """The least and greatest pass@k of any set of problems with n samples each and this avg@n and pass@n.

    Args:
        avg: avg@n in [0, 1].
        pass_n: pass@n in [0, 1], at least avg and at most n * avg.
        n: Samples a problem.
        k: 1 to n.

    Raises:
        StageError: avg and pass@n exclude each other.
    """
    if not avg - _ROUNDING <= pass_n <= min(1.0, n * avg) + _ROUNDING:
        raise StageError(
            f"avg@{n} = {avg:.4f} and pass@{n} = {pass_n:.4f} exclude each other",
            field="evaluate",
            fix=f"pass@{n} lies between avg@{n} and {n} times it: take both from the same samples",
        )
    if pass_n <= 0:
        return 0.0, 0.0
    curve = pass_at_k(n, np.arange(n + 1), k)
    mean = min(max(avg * n / pass_n, 1.0), float(n))
    greatest = float(np.interp(mean, np.arange(n + 1), curve))
    with_all = (mean - 1) / (n - 1) if n > 1 else 1.0
    least = float(curve[1] + with_all * (curve[n] - curve[1]))
    return pass_n * least, pass_n * greatest


def check_consistent(avg: float, passes: dict[int, float], n: int, tolerance: float = 1e-6) -> None:
    """Refuse metrics that cannot come from one set of n samples a problem.

    Args:
        avg: avg@n.
        passes: pass@k by k; checked against the bounds where pass@n is among them.
        n: Samples a problem.
        tolerance: What rounding may have done to the figures.

    Raises:
        StageError: Names the metric and what the others allow.
    """
    if n not in passes:
        return
    for k, value in sorted(passes.items()):
        low, high = pass_at_k_bounds(avg, passes[n], n, k)
        if not low - tolerance <= value <= high + tolerance:
            raise StageError(
                f"pass@{k} = {value:.4f} is impossible: avg@{n} = {avg:.4f} and pass@{n} = {passes[n]:.4f} leave "
                f"{low:.4f} to {high:.4f}",
                field="evaluate",
                fix="take all metrics of a row from the same samples",
            )


def check_summary(summary: Mapping[str, Any], avg_name: str, solved: float | None = None) -> None:
    """Refuse a summary that cannot come from one set of samples.

    Args:
        summary: Metrics by name, each with a `value`; see `outcomes.summarise`.
        avg_name: "avg@32". Where problems have unequal numbers of samples ("avg@8-32") nothing is checked.
        solved: Share of problems with a correct sample, which is pass@n; None takes it from the summary.

    Raises:
        StageError: See `check_consistent`.
    """
    number = avg_name.removeprefix("avg@")
    if not number.isdecimal():
        return
    n = int(number)
    passes = {
        int(name.removeprefix("pass@")): float(one["value"])
        for name, one in summary.items()
        if name.startswith("pass@")
    }
    if solved is not None and abs(passes.setdefault(n, solved) - solved) > _ROUNDING:
        raise StageError(
            f"pass@{n} = {passes[n]:.4f}, but {solved:.4f} of the problems have a correct one of {n} samples",
            field="evaluate",
            fix="take all metrics of a row from the same samples",
        )
    check_consistent(float(summary[avg_name]["value"]), passes, n)
