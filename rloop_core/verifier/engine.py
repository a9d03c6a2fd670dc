"""One comparison with math-verify's LaTeX reader, inside a worker process that may be killed at any time.

Only answers and golds get here, within the limits. The structure is compared by `structure.same`, as in the caller;
here the formulas that are left are read by latex2sympy, math-verify's grammar, and compared by `expressions`.
math-verify's own comparison serves what is no scalar (matrix expressions, sets by condition), with its SIGALRM
timeouts off: the pool's kill replaces them. Nothing is ever evaluated as Python: math-verify's other reader is not
used.

Decimals become fractions before they are read, so that no float is compared: 0.1 is not 0.10000001, and no decimal is
`\\sqrt{2}`, however many digits it has (unless the policies set a tolerance).
"""

from __future__ import annotations

import logging
import os
import re
import warnings
from functools import lru_cache
from typing import Any

from rloop_core.verifier.canonical_latex import clean
from rloop_core.verifier.compare import exact_leaf
from rloop_core.verifier.latex_adapter import is_decimal, readable
from rloop_core.verifier.limits import beyond_limits
from rloop_core.verifier.numbers import without_groups
from rloop_core.verifier.policies import DEFAULT, Policies
from rloop_core.verifier.quantities import pair
from rloop_core.verifier.structure import same

# With gmpy2 a power tower aborts the process. Read by sympy and mpmath when they are first imported, in the worker.
os.environ["MPMATH_NOGMPY"] = "1"
os.environ["SYMPY_GROUND_TYPES"] = "python"

_DOTS = re.compile(r"\.\.|\\[lc]?dots")
_DOLLAR = re.compile(r"(?<!\\)\$")
_SEAM = re.compile(r"\$\s*\$")  # one formula set as two
_WARMING = (
    "\\frac{\\sin(2x)}{\\cos^2 x}",
    "2^{n+1}-\\binom{n}{k}",
    "e^{-2t}+C_{1}\\ln t",
    "\\frac{x^2-1}{\\sqrt{x+1}}",
    "\\left\\lfloor\\frac{n}{2}\\right\\rfloor+n!",
    "\\log_{2} 8",
)


def warm_up() -> None:
    """Import and exercise the engine, so that the first real comparison is not the one that pays for it.

    The grammar learns as it reads, and workers inherit what their template has learnt: a few formulas here make each
    later one two or three times as fast to read.
    """
    for text in _WARMING:
        compare_in_engine(text, f"{text}+1")


def compare_in_engine(answer: str, gold: str, policies: Policies = DEFAULT) -> bool:
    """Whether the two normalised answers are equal. Text that cannot be read equals nothing.

    Raises:
        MemoryError, RecursionError: The comparison needed more than the worker has.
    """
    return bool(
        same(
            answer,
            gold,
            policies,
            lambda one, other: _leaf(one, other, policies),
            lambda one, other: _equations(one, other, policies),
        )
    )


def _leaf(answer: str, gold: str, policies: Policies) -> bool | None:
    """One formula against another."""
    decided = exact_leaf(answer, gold, policies)
    if decided is not None:
        return decided
    sides = pair(clean(without_groups(answer, policies)), clean(without_groups(gold, policies)), policies)
    if sides is None or any(beyond_limits(side.text) for side in sides):
        return False
    left, right = (_read(side.text, policies) for side in sides)
    if left is None or right is None:
        return False
    tolerance = policies.tolerance if any(is_decimal(side.text) for side in sides) else 0.0
    return _equal(left, right, tolerance)


def _equations(left: tuple[str, str], right: tuple[str, str], policies: Policies) -> bool:
    """Whether a = b and c = d say the same: a - b is a multiple of c - d."""
    from rloop_core.verifier.expressions import proportional

    read = [_read(text, policies) for text in (*left, *right)]
    if any(not _is_scalar(one) for one in read):
        return False
    a, b, c, d = read
    return _guarded(lambda: proportional(a - b, c - d))


def _equal(left: Any, right: Any, tolerance: float) -> bool:
    from rloop_core.verifier.expressions import equal_expressions

    if _is_scalar(left) and _is_scalar(right):
        return _guarded(lambda: equal_expressions(left, right, tolerance))
    if _is_scalar(left) or _is_scalar(right):
        return False
    from math_verify import verify

    return bool(verify(right, left, timeout_seconds=None, raise_on_error=False))


def _guarded(decide: Any) -> bool:
    """The decision; False where sympy cannot make one."""
    try:
        return bool(decide())
    except (MemoryError, RecursionError):
        raise
    except Exception:
        return False


def _is_scalar(value: Any) -> bool:
    import sympy

    return isinstance(value, sympy.Expr) and not isinstance(value, sympy.MatrixBase | sympy.MatrixExpr)


@lru_cache(maxsize=4096)
def _read(text: str, policies: Policies) -> Any:
    """The sympy object, None for text that the grammar does not know."""
    text = _SEAM.sub(" ", text)
    if text.startswith("$") and text.endswith("$"):
        text = text[1:-1]
    if _DOTS.search(text) or _DOLLAR.search(text):
        return None  # the reader would leave dots out, and stop at the end of a formula among words
    latex2sympy, settings = _reader()
    try:
        return latex2sympy(readable(text, policies), **settings)
    except (MemoryError, RecursionError):
        raise
    except Exception:
        return None


@lru_cache(maxsize=1)
def _reader() -> tuple[Any, dict[str, Any]]:
    from latex2sympy2_extended import NormalizationConfig, latex2sympy
    from latex2sympy2_extended.latex2sympy2 import ConversionConfig

    for name in ("math_verify", "latex2sympy2_extended"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore")
    # Its unit remover takes the variables t, h and o for units: it would call 3t and 3 equal. Mixed numbers are ours.
    normalisation = NormalizationConfig(units=False, malformed_operators=True, nits=True, boxed="none")
    conversion = ConversionConfig(interpret_as_mixed_fractions=False, lowercase_symbols=False)
    return latex2sympy, {"normalization_config": normalisation, "conversion_config": conversion}
