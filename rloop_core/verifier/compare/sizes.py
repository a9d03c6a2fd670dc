"""Bound the numbers of a formula without computing them, so that the math engine does not take for ever or all memory.

A sum or product of numbers is bounded by their product, a power by base times exponent in logarithms. Letters count as
small: only what is written in digits can be too large.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from rloop_core.verifier.read.tree import Node

MAX_EXPONENT = 100_000
MAX_VALUE_DIGITS = 20_000_000
MAX_FACTORIAL = 5000
MAX_BINOMIAL = 10_000
MAX_RANGE = 2500
MAX_TOWER = 3
_SMALL = 0.302


class _TooLargeError(Exception):
    """The formula is beyond a limit, named by the message."""


class _Size(NamedTuple):
    """Decimal digits of a part's numbers, multiplied together, and its levels of exponents."""

    digits: float = _SMALL
    tower: int = 0


def beyond_limits(node: Node) -> str | None:
    """Return why the tree of an answer must not be evaluated ("an exponent above ..."); None when it may be."""
    try:
        _size(node)
    except _TooLargeError as error:
        return str(error)
    return None


def _size(node: Node) -> _Size:
    """Bound the numbers of a part.

    Raises:
        _TooLargeError: A number is beyond a limit.
    """
    sizes = [_size(part) for part in node.parts]
    tower = max((size.tower for size in sizes), default=0)
    if node.kind == "number":
        return _Size(
            max(_SMALL, *(math.log10(part) for part in (abs(node.value.numerator), node.value.denominator) if part))
        )
    if node.kind == "power" or node.value == "exp":
        base, exponent = sizes if len(sizes) == 2 else (_Size(), sizes[0])
        _check(exponent.digits, MAX_EXPONENT, "an exponent")
        if tower == MAX_TOWER:
            raise _TooLargeError(f"a power tower of more than {MAX_TOWER} levels")
        return _checked(base.digits * 10**exponent.digits, tower + 1)
    if node.kind == "factorial":
        _check(sizes[0].digits, MAX_FACTORIAL, "a factorial")
        return _checked(10 ** sizes[0].digits * sizes[0].digits, tower)
    if node.kind == "binomial":
        _check(sizes[0].digits, MAX_BINOMIAL, "a binomial coefficient")
        return _checked(0.31 * 10 ** sizes[0].digits, tower)
    if node.kind in ("summation", "long product"):
        _check(max(sizes[2].digits, sizes[3].digits), MAX_RANGE, "a range")
    if node.kind in ("list", "set", "tuple", "union", "matrix", "relation", "region", "cases"):
        return _Size(tower=tower)
    return _checked(sum(size.digits for size in sizes) or _SMALL, tower)


def _check(digits: float, most: int, what: str) -> None:
    if digits > math.log10(most):
        raise _TooLargeError(f"{what} above {most}")


def _checked(digits: float, tower: int) -> _Size:
    if digits > MAX_VALUE_DIGITS:
        raise _TooLargeError(f"a number of more than {MAX_VALUE_DIGITS} digits")
    return _Size(digits, tower)
