"""Exact arithmetic with rationals, square roots, i, pi and variables: sums of q * pi^k * sqrt(n) * x^a y^b.

Square roots of different squarefree integers are linearly independent over the rationals, and so are powers of pi with
algebraic coefficients; so two such sums are equal exactly when they have the same terms. i is the root of -1.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from math import gcd, isqrt
from typing import TypeAlias

Monomial: TypeAlias = tuple[tuple[str, int], ...]
Term: TypeAlias = tuple[int, int, Monomial]
Form: TypeAlias = dict[Term, Fraction]
"""(power of pi, squarefree number under the root, variables with their powers) -> coefficient, never 0."""

MAX_TERMS = 80
_MAX_BITS = 6000
_MAX_RADICAND = 10**12
_MAX_POWER = 5000
_ONE: Term = (0, 1, ())


class TooComplexError(ValueError):
    """The value is no such sum, or the sum is too large."""


def rational(value: Fraction | int) -> Form:
    """Return a rational number."""
    return {_ONE: Fraction(value)} if value else {}


def pi() -> Form:
    """Return pi."""
    return {(1, 1, ()): Fraction(1)}


def variable(name: str) -> Form:
    """Return a variable."""
    return {(0, 1, ((name, 1),)): Fraction(1)}


def add(left: Form, right: Form, sign: int = 1) -> Form:
    """Return left + sign * right."""
    total = dict(left)
    for term, value in right.items():
        total[term] = total.get(term, Fraction(0)) + sign * value
    return _checked(total)


def multiply(left: Form, right: Form) -> Form:
    """Return the product."""
    if len(left) * len(right) > 4 * MAX_TERMS:
        raise TooComplexError
    total: Form = {}
    for (pi_left, root_left, names_left), value_left in left.items():
        for (pi_right, root_right, names_right), value_right in right.items():
            factor, root = _root_product(root_left, root_right)
            term = (pi_left + pi_right, root, _product(names_left, names_right))
            total[term] = total.get(term, Fraction(0)) + value_left * value_right * factor
    return _checked(total)


def power(base: Form, exponent: int) -> Form:
    """Return the power with an integer exponent.

    Raises:
        TooComplexError: 0 to a negative power, or a result beyond the limits.
    """
    if exponent < 0:
        base, exponent = inverse(base), -exponent
    if exponent > _MAX_POWER or (len(base) > 1 and exponent > 24):
        raise TooComplexError
    size = max((_bits(value) for value in base.values()), default=0)
    if size * exponent > _MAX_BITS:
        raise TooComplexError
    result = rational(1)
    while exponent:
        if exponent & 1:
            result = multiply(result, base)
        exponent >>= 1
        if exponent:
            base = multiply(base, base)
    return result


def inverse(form: Form) -> Form:
    """Return 1 / form, of one term, or by conjugates of a number with a single power of pi."""
    factor = rational(1)
    for _ in range(6):
        if len(form) == 1:
            ((pis, root, names), value) = next(iter(form.items()))
            over = {(-pis, root, tuple((name, -count) for name, count in names)): 1 / (value * root)}
            return multiply(factor, over)
        if not form or any(term[2] for term in form) or len({term[0] for term in form}) > 1:
            break
        divisor = _least_factor(next(term[1] for term in form if term[1] != 1))
        conjugate = {term: -value if _divides(term[1], divisor) else value for term, value in form.items()}
        factor, form = multiply(factor, conjugate), multiply(form, conjugate)
    raise TooComplexError


def square_root(form: Form) -> Form:
    """Return the square root of a rational number."""
    if not form:
        return {}
    if len(form) > 1 or _ONE not in form:
        raise TooComplexError
    value = form[_ONE]
    outside, inside = _squarefree(abs(value.numerator) * value.denominator)
    return {(0, inside if value > 0 else -inside, ()): Fraction(outside, value.denominator)}


def as_rational(form: Form) -> Fraction | None:
    """Return the form as a rational number; None if it is none."""
    if not form:
        return Fraction(0)
    return form[_ONE] if len(form) == 1 and _ONE in form else None


def _checked(form: Form) -> Form:
    form = {term: value for term, value in form.items() if value}
    if len(form) > MAX_TERMS or any(_bits(value) > _MAX_BITS for value in form.values()):
        raise TooComplexError
    return form


def _bits(value: Fraction) -> int:
    return value.numerator.bit_length() + value.denominator.bit_length() - 1


def _root_product(left: int, right: int) -> tuple[int, int]:
    """Return (factor, root) with sqrt(left) * sqrt(right) = factor * sqrt(root)."""
    common = gcd(left, right)
    root = abs(left) * abs(right) // common**2
    if left < 0 and right < 0:
        return -common, root
    return common, -root if left < 0 or right < 0 else root


def _product(left: Monomial, right: Monomial) -> Monomial:
    if not left or not right:
        return left or right
    powers = dict(left)
    for name, count in right:
        powers[name] = powers.get(name, 0) + count
    return tuple(sorted((name, count) for name, count in powers.items() if count))


def _least_factor(root: int) -> int:
    """Return -1 for an imaginary root, else its least prime."""
    if root < 0:
        return -1
    prime = 2
    while root % prime:
        prime += 1
        if prime > 1000:
            return root
    return prime


def _divides(root: int, divisor: int) -> bool:
    return root < 0 if divisor == -1 else root % divisor == 0


@lru_cache(maxsize=4096)
def _squarefree(number: int) -> tuple[int, int]:
    """Return (a, b) with number = a^2 b and b squarefree."""
    if isqrt(number) ** 2 == number:
        return isqrt(number), 1
    if number > _MAX_RADICAND:
        raise TooComplexError
    outside, inside, prime = 1, 1, 2
    while prime**3 <= number:
        while number % (prime * prime) == 0:
            number //= prime * prime
            outside *= prime
        if number % prime == 0:
            number //= prime
            inside *= prime
        prime += 1
    if isqrt(number) ** 2 == number:
        return outside * isqrt(number), inside
    return outside, inside * number
