"""Compare two sympy expressions: numbers by value, formulas with variables by their values at exact points.

Numbers are compared to 50 digits and, when those agree, to as many as their powers could hide a difference behind:
e^{999} + 1 is not e^{999}. Formulas with variables are evaluated at rational points (at integers for floors, factorials
and binomials): a difference at one point proves them different, and agreement to 40 digits at all of them is as good as
a proof (Schwartz, Zippel). This takes milliseconds where symbolic simplification may run for ever. A point at which
only one side is real is ignored: so ln(x^2) is 2 ln(x), and |x| is not x.
"""

from __future__ import annotations

from typing import Any

import sympy
from sympy.core.function import AppliedUndef

_DIGITS = 50
_MORE_DIGITS = 400
_MOST_DIGITS = 20_000
_NOISE = 1e-80
"""A smaller value may be zero: evaluation works with up to a hundred digits where terms cancel."""
_MAX_NESTED = 5
_POINTS = ((7, 11), (-13, 17), (29, 19), (-5, 3), (101, 23), (3, 37), (-61, 29), (19, 13))
_INTEGERS = (3, 8, 13, 22, 31, 12, 17, 30)


def equal_expressions(left: Any, right: Any, tolerance: float = 0.0) -> bool:
    """Return True if two sympy expressions are equal.

    Args:
        left, right: Scalar expressions; the letters i and e in them are the constants.
        tolerance: For numbers, the relative difference that still counts as equal.

    Raises:
        MemoryError, RecursionError: The comparison needed more than the process has.
    """
    left, right = _with_constants(left), _with_constants(right)
    if left.has(sympy.zoo, sympy.nan) or right.has(sympy.zoo, sympy.nan):
        return False
    if left == right:
        return True
    if left.is_Rational and right.is_Rational and not tolerance:
        return False
    variables = sorted(left.free_symbols | right.free_symbols, key=str)
    if not variables:
        return _equal_numbers(left, right, tolerance)
    return _equal_at_points(left, right, variables)


def proportional(left: Any, right: Any) -> bool:
    """Return True if left = c * right for a number c other than 0, so that left = 0 and right = 0 are equivalent."""
    left, right = _with_constants(left), _with_constants(right)
    if left.free_symbols != right.free_symbols or not left.free_symbols:
        return False
    for point in _points(sorted(left.free_symbols, key=str), False):
        left_value, right_value = left.subs(point), right.subs(point)
        if _is_nonzero(right_value) and _is_nonzero(left_value):
            ratio = left_value / right_value
            return _is_close(ratio.evalf(_DIGITS), sympy.re(ratio).evalf(_DIGITS)) and equal_expressions(
                left, ratio * right
            )
    return False


def _with_constants(expression: Any) -> Any:
    """Make i and e the constants, remove the assumptions of other symbols, and evaluate what can be evaluated."""
    names = {"i": sympy.I, "e": sympy.E}
    wanted = {symbol: names.get(symbol.name, sympy.Symbol(symbol.name)) for symbol in expression.free_symbols}
    return _named(expression.xreplace(wanted) if wanted else expression).doit()


def _named(expression: Any) -> Any:
    """Replace derivatives and unknown functions, which have no value at a point, by variables of that name."""
    for _ in range(_MAX_NESTED):
        innermost = [
            atom
            for atom in expression.atoms(sympy.Derivative, AppliedUndef)
            if not any(argument.atoms(sympy.Derivative, AppliedUndef) for argument in atom.args)
        ]
        if not innermost:
            break
        expression = expression.xreplace({atom: _evaluated_or_named(atom) for atom in innermost})
    return expression


def _evaluated_or_named(atom: Any) -> Any:
    """Evaluate d/dx of a formula in x; make dx/dt and f(x) variables of that name."""
    if isinstance(atom, sympy.Derivative) and set(atom.variables) <= atom.expr.free_symbols:
        return atom.doit()
    arguments = [sympy.expand(arg) if isinstance(arg, sympy.Expr) else arg for arg in atom.args]
    return sympy.Symbol(str(atom.func(*arguments)))


def _equal_numbers(left: Any, right: Any, tolerance: float) -> bool:
    left_value, right_value = left.evalf(_DIGITS), right.evalf(_DIGITS)
    if not (_is_finite(left_value) and _is_finite(right_value)):
        return bool(left == right)
    size = max(abs(left_value), abs(right_value))
    if tolerance:
        return bool(abs(left_value - right_value) <= tolerance * abs(right_value))
    if size > _NOISE and abs(left_value - right_value) > size * sympy.Float(10) ** (10 - _DIGITS):
        return False
    if left - right == 0:
        return True
    # Fifty equal digits: the same number, or neighbours such as \sqrt{10^{120}+1} and 10^{60}.
    digits = max(_MORE_DIGITS, _DIGITS + 2 * _magnitude(left) + 2 * _magnitude(right))
    if digits > _MOST_DIGITS:
        return False
    left_value, right_value = (side.evalf(digits, maxn=3 * digits) for side in (left, right))
    size = max(abs(left_value), abs(right_value))
    difference = abs(left_value - right_value)
    return bool(difference <= size * sympy.Float(10) ** (20 - digits) or size < sympy.Float(10) ** (-2 * digits))


def _magnitude(expression: Any) -> int:
    """Bound the decimal digits, before or after the point, of the formula's numbers, powers and factorials."""
    digits = sum(
        0.30103 * (number.p.bit_length() + number.q.bit_length()) for number in expression.atoms(sympy.Rational)
    )
    for power in expression.atoms(sympy.Pow, sympy.exp, sympy.factorial):
        size = abs(sympy.log(abs(power.evalf(15)), 10).evalf(15)) if not power.free_symbols else sympy.Integer(0)
        digits += float(size) if size.is_finite and size.is_real else 0.0
    return int(min(digits, 10.0 * _MOST_DIGITS))


def _equal_at_points(left: Any, right: Any, variables: list[Any]) -> bool:
    whole = (sympy.floor, sympy.ceiling, sympy.factorial, sympy.binomial, sympy.Mod, sympy.Sum, sympy.Product)
    integers = left.has(*whole) or right.has(*whole) or _alternates(left) or _alternates(right)
    agreed = 0
    digits = _DIGITS + 2 * _magnitude(left) + 2 * _magnitude(right)
    if digits > _MOST_DIGITS:
        return False
    close_if_complex: list[bool] = []
    for point in _points(variables, integers):
        left_value, right_value = _evaluate(left, point, digits), _evaluate(right, point, digits)
        if left_value is None or right_value is None:
            continue
        real = [abs(sympy.im(value)) < abs(value) * 1e-30 or value == 0 for value in (left_value, right_value)]
        if all(real):
            if not _is_close(left_value, right_value, digits):
                return False
            agreed += 1
        elif not any(real):
            close_if_complex.append(_is_close(left_value, right_value, digits))
    if agreed:
        return agreed > 1
    return len(close_if_complex) > 1 and all(close_if_complex)


def _alternates(expression: Any) -> bool:
    """Return True for a power of a negative number with a variable in the exponent, as (-1)^n."""
    return any(power.exp.free_symbols and power.base.is_negative for power in expression.atoms(sympy.Pow))


def _points(variables: list[Any], integers: bool) -> list[dict[Any, Any]]:
    points = []
    for shift in range(len(_POINTS)):
        point = {}
        for index, variable in enumerate(variables):
            at = (shift + 3 * index) % len(_POINTS)
            top, bottom = _POINTS[at]
            point[variable] = (
                sympy.Integer(_INTEGERS[at]) if integers else sympy.Rational(top + 2 * index * bottom, bottom)
            )
        points.append(point)
    return points


def _evaluate(expression: Any, point: dict[Any, Any], digits: int) -> Any:
    """Evaluate at a point to so many digits; None where the value is undefined."""
    value = expression.xreplace(point)
    value = value.doit() if hasattr(value, "doit") else value
    value = value.evalf(digits)
    return value if _is_finite(value) else None


def _is_nonzero(expression: Any) -> bool:
    value = expression.evalf(_DIGITS)
    return _is_finite(value) and abs(value) > 1e-30


def _is_finite(value: Any) -> bool:
    return bool(
        value.is_number and value.is_finite is not False and not value.has(sympy.nan, sympy.zoo, sympy.oo)
    ) and (len(value.atoms(sympy.Function)) == 0)


def _is_close(left: Any, right: Any, digits: int = _DIGITS) -> bool:
    size = max(abs(left), abs(right))
    # With more digits, smaller values differ from zero.
    noise = min(_NOISE, sympy.Float(10) ** (-digits // 2))
    return bool(abs(left - right) <= size * sympy.Float(10) ** (10 - digits)) or bool(size < noise)


def is_scalar(value: Any) -> bool:
    """Return True for an expression that is no matrix."""
    return isinstance(value, sympy.Expr) and not isinstance(value, sympy.MatrixBase | sympy.MatrixExpr)
