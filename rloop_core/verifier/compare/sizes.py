"""Bound the numbers of a formula without computing them, so that the math engine does not take for ever or all memory.

A sum or product of numbers is bounded by their product, a power by base times exponent in logarithms. Letters count as
small: only what is written in digits can be too large.
"""

from __future__ import annotations

import math

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


def beyond_limits(node: Node) -> str | None:
    """Return why the tree of an answer must not be evaluated ("an exponent above ..."); None when it may be."""
    try:
        _size(node)
    except _TooLargeError as error:
        return str(error)
    return None


def _size(node: Node) -> tuple[float, int]:
    """Return the decimal digits of a part's numbers, multiplied together, and its levels of exponents.

    Raises:
        _TooLargeError: A number is beyond a limit.
    """
    sizes = [_size(part) for part in node.parts]
    digits, tower = [size[0] for size in sizes], max((size[1] for size in sizes), default=0)
    if node.kind == "number":
        parts = abs(node.value.numerator), node.value.denominator
        return max(_SMALL, *(math.log10(part) for part in parts if part)), 0
    if node.kind in ("list", "set", "tuple", "union", "matrix", "relation", "region", "cases"):
        return _SMALL, tower
    product = sum(digits) or _SMALL
    if node.kind == "power" or node.value == "exp":
        _check(digits[-1], MAX_EXPONENT, "an exponent")
        if tower == MAX_TOWER:
            raise _TooLargeError(f"a power tower of more than {MAX_TOWER} levels")
        product, tower = (digits[0] if len(digits) == 2 else _SMALL) * 10 ** digits[-1], tower + 1
    elif node.kind == "factorial":
        _check(digits[0], MAX_FACTORIAL, "a factorial")
        product = 10 ** digits[0] * digits[0]
    elif node.kind == "binomial":
        _check(digits[0], MAX_BINOMIAL, "a binomial coefficient")
        product = 0.31 * 10 ** digits[0]
    elif node.kind in ("summation", "long product"):
        _check(max(digits[2:]), MAX_RANGE, "a range")
    if product > MAX_VALUE_DIGITS:
        raise _TooLargeError(f"a number of more than {MAX_VALUE_DIGITS} digits")
    return product, tower


def _check(digits: float, most: int, what: str) -> None:
    if digits > math.log10(most):
        raise _TooLargeError(f"{what} above {most}")
