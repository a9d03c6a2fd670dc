"""Compare two answers with sympy, inside a worker process that may be killed at any time.

Only answers and golds within the limits get here. The comparison of structures is the caller's (`compare.answers`);
formulas become sympy expressions, compared by `expressions`. Nothing is evaluated as Python. Decimals are exact
fractions: 0.1 is not 0.10000001, and no decimal is `\\sqrt{2}`, however many digits it has, without a tolerance.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from rloop_core.verifier.compare.answers import FORMULAS, compare
from rloop_core.verifier.policies import DEFAULT, Policies
from rloop_core.verifier.read.tree import Node

# With gmpy2 a power tower aborts the process. sympy and mpmath read these when they are first imported, in the worker.
os.environ["MPMATH_NOGMPY"] = "1"
os.environ["SYMPY_GROUND_TYPES"] = "python"

_WARMING = (
    "\\frac{\\sin(2x)}{\\cos^2 x}",
    "2^{n+1}-\\binom{n}{k}",
    "\\sqrt{2}+\\pi",
    "\\lfloor\\frac{n}{2}\\rfloor+n!",
    "\\log_{2} 8",
)


def warm_up() -> None:
    """Import sympy and compare a few formulas; workers inherit the caches of their template."""
    for text in _WARMING:
        compare_in_engine(text, f"{text}+1")


def compare_in_engine(answer: str, gold: str, policies: Policies = DEFAULT) -> bool:
    """Return True if two normalised answers are equal. Text that cannot be read equals nothing but itself.

    Raises:
        MemoryError, RecursionError: The comparison needed more than the worker has.
    """
    return bool(compare(answer, gold, policies, _equal, _proportional))


def _equal(left: Node, right: Node, tolerance: float) -> bool:
    from rloop_core.verifier.engine.expressions import equal_expressions

    return _false_on_error(lambda: equal_expressions(to_sympy(left), to_sympy(right), tolerance))


def _proportional(left: Node, right: Node) -> bool:
    from rloop_core.verifier.engine.expressions import proportional

    return _false_on_error(lambda: proportional(to_sympy(left), to_sympy(right)))


def _false_on_error(decide: Callable[[], bool]) -> bool:
    """Call `decide`; return False where sympy fails."""
    try:
        return bool(decide())
    except (MemoryError, RecursionError):
        raise
    except Exception:
        return False


@lru_cache(maxsize=4096)
def to_sympy(node: Node) -> Any:
    """Return a formula as a sympy expression.

    Raises:
        ValueError: The tree is no formula.
    """
    import sympy

    if node.kind not in FORMULAS:
        raise ValueError(node.kind)
    if node.kind == "number":
        return sympy.Rational(node.value.numerator, node.value.denominator)
    if node.kind == "name":
        return sympy.Symbol(node.value)
    if node.kind == "constant":
        return {"e": sympy.E, "i": sympy.I, "pi": sympy.pi, "infty": sympy.oo}[node.value]
    if node.kind == "degrees":
        return to_sympy(node.parts[0]) * sympy.pi / 180
    return _rules()[node.kind](node, *map(to_sympy, node.parts))


@lru_cache(maxsize=1)
def _rules() -> dict[str, Callable[..., Any]]:
    import sympy

    from rloop_core.verifier.engine.expressions import root

    return {
        "add": lambda node, *terms: sympy.Add(*terms),
        "mixed": lambda node, *terms: sympy.Add(*terms),
        "negative": lambda node, term: -term,
        "product": lambda node, *factors: sympy.Mul(*factors),
        "quotient": lambda node, top, bottom: top / bottom,
        "power": lambda node, base, exponent: base**exponent,
        "root": lambda node, radicand, degree: root(radicand, degree),
        "factorial": lambda node, term: sympy.factorial(term),
        "binomial": lambda node, top, bottom: sympy.binomial(top, bottom),
        "abs": lambda node, term: sympy.Abs(term),
        "percent": lambda node, term: term / 100,
        "mod": lambda node, left, right: sympy.Mod(left, right),
        "applied": lambda node, *arguments: sympy.Symbol(f"{node.value}{tuple(map(sympy.expand, arguments))}"),
        "call": _call,
        "summation": lambda node, body, *bounds: sympy.Sum(body, bounds).doit(),
        "long product": lambda node, body, *bounds: sympy.Product(body, bounds).doit(),
        "integral": lambda node, body, variable, *bounds: sympy.Integral(body, (variable, *bounds)).doit(),
        "derivative": lambda node, variable, body: sympy.diff(body, variable),
        "determinant": lambda node, *cells: sympy.Matrix(node.value, node.value, cells).det(),
    }


def _call(node: Node, *arguments: Any) -> Any:
    import sympy

    called = node.value
    if called == "log" and len(arguments) == 1:
        return sympy.log(arguments[0]) / sympy.Symbol("base of log")  # ten or e: who writes \\log alone does not say
    special: dict[str, Callable[..., Any]] = {
        "log": lambda argument, base: sympy.log(argument) / sympy.log(base),
        "ln": sympy.log,
        "lg": lambda argument: sympy.log(argument) / sympy.log(10),
        "max": sympy.Max,
        "min": sympy.Min,
        "lcm": sympy.Function("lcm"),
        "gcd": sympy.Function("gcd"),
    }
    if called in special:
        return special[called](*arguments)
    return getattr(sympy, called.replace("arc", "a"))(*arguments)
