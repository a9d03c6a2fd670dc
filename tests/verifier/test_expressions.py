"""Two expressions are equal if and only if they have the same value wherever both are defined."""

from __future__ import annotations

import random
from typing import Any

import pytest
import sympy
from sympy.parsing.sympy_parser import parse_expr

from rloop_core.verifier.engine.expressions import equal_expressions, proportional, root

NAMES = {"root": root, "gcd": sympy.Function("gcd"), "lcm": sympy.Function("lcm")}


def read(text: str, evaluate: bool = True) -> Any:
    return parse_expr(text, local_dict=NAMES, evaluate=evaluate)


def assert_equal(expected: bool, left: str, right: str) -> None:
    """Check the verdict in both orders, for evaluated expressions and for expressions as they were written."""
    for evaluate in (True, False):
        one, other = read(left, evaluate), read(right, evaluate)
        assert equal_expressions(one, other) is expected, (left, right, evaluate)
        assert equal_expressions(other, one) is expected, (right, left, evaluate)


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        ("x", "Min(x, 10**9)", False), ("x", "Max(Min(x, 5000), -5000)", False),
        ("Abs(Abs(x) - 7)", "Max(Abs(x) - 7, 7 - Abs(x))", True), ("x", "7000*floor(x/7000)", False),
        ("floor(x/7)", "ceiling(x/7) - 1", False), ("floor(x)", "floor(x + 1/1000)", False),
        ("floor(x*7) + floor(x*7 + 1/2)", "floor(14*x)", True), ("Max(a, b)", "(a + b + Abs(a - b))/2", True),
        ("Min(a, b)", "(a + b - Abs(a - b))/2", True), ("Max(a, b, c)", "Max(Max(a, b), c)", True),
        ("Max(a, b) + Min(a, b)", "a + b", True), ("Max(a, b, c) + Min(a, b, c)", "a + b + c", False),
        ("Max(a, b)", "a", False), ("Max(a, b, c)", "Max(a, b)", False), ("Max(a, b, c, d)", "Max(a, b, c)", False),
        ("Max(a, b/10**6)", "a", False), ("Max(a, b - 10**9)", "a", False), ("Abs(a*b)", "Abs(a)*Abs(b)", True),
        ("Abs(a + b)", "Abs(a) + Abs(b)", False), ("Abs(a - b)", "a - b", False), ("sqrt(a**2*b**2)", "a*b", False),
        ("sqrt(a**2*b**2)", "Abs(a*b)", True), ("floor(a + b)", "floor(a) + floor(b)", False),
        ("floor(a + floor(b))", "floor(a) + floor(b)", True), ("f(x)", "f(y)", False), ("f(x)", "Abs(f(x))", False),
        ("f(x)", "Min(f(x), 5000)", False), ("f(x + 1)", "f(x) + 1", False), ("f(f(x))", "f(x)", False),
    ],
)  # fmt: skip
def test_several_variables_and_functions(left: str, right: str, expected: bool) -> None:
    assert_equal(expected, left, right)


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        ("sqrt(n)*sqrt(n + 1)", "sqrt(n*(n + 1))", True), ("sqrt(x - 3)*sqrt(x - 5)", "sqrt((x - 3)*(x - 5))", True),
        ("sqrt(x - 3)*sqrt(5 - x)", "sqrt((x - 3)*(5 - x))", True),
        ("sqrt(x - 3)*sqrt(5 - x)", "2*sqrt((x - 3)*(5 - x))", False),
        ("sqrt(x - 10**6)/sqrt(x)", "sqrt((x - 10**6)/x)", True),
        ("sqrt(a)*sqrt(b)*sqrt(c)*sqrt(d)*sqrt(s)", "sqrt(a*b*c*d*s)", True), ("sqrt(x)/sqrt(y)", "sqrt(x/y)", True),
        ("sqrt(x**2)", "x", False), ("sqrt(x**2)", "Abs(x)", True), ("sqrt(x)**2", "x", True),
        ("sqrt(x)", "-sqrt(x)", False), ("sqrt(-x)", "sqrt(x)", False), ("sqrt(-x**2 - 1)", "I*sqrt(x**2 + 1)", True),
        ("sqrt(-x**2 - 1)", "sqrt(x**2 + 1)", False), ("sqrt(-3)*x", "I*sqrt(3)*x", True),
        ("log(x**2)", "2*log(x)", True), ("log(x*y)", "log(x) + log(y)", True), ("log(x*y)", "log(x)*log(y)", False),
        ("log(x)/log(2)", "log(x, 2)", True), ("exp(log(x))", "x", True), ("asin(x) + acos(x)", "pi/2", True),
        ("asin(x)", "atan(x)", False), ("asin(x)", "atan(x/sqrt(1 - x**2))", True),
        ("(x**2 - 1)/(x - 1)", "x + 1", True), ("x/x", "1", True), ("root(x, 3)", "x**(1/3)", True),
        ("root(x, 3)**3", "x", True), ("root(x**3, 3)", "x", True), ("root(x**3, 3)", "Abs(x)", False),
        ("root(x, 3)*root(y, 3)", "root(x*y, 3)", True), ("root(-x, 3)", "-root(x, 3)", True),
        ("root(x, 3)", "sqrt(x)", False), ("root(x**2, 3)", "root(x, 3)**2", True), ("root(x**4, 4)", "x", False),
        ("root(x**4, 4)", "Abs(x)", True), ("root(-8, 3)", "-2", True), ("root(-8, 3)", "1 + sqrt(3)*I", False),
        ("sqrt(root(-8, 3))", "I*sqrt(2)", True), ("I*root(-8, 3)", "-2*I", True),
        ("root(-Rational(1, 32), 5)", "-1/2", True), ("root(-16, 2)", "4*I", True),
        ("root(7 - sqrt(50), 3)", "1 - sqrt(2)", True),
    ],
)  # fmt: skip
def test_roots_and_domains(left: str, right: str, expected: bool) -> None:
    assert_equal(expected, left, right)


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        ("binomial(n, 2)", "n*(n - 1)/2", True), ("binomial(n, k)", "binomial(n, n - k)", True),
        ("binomial(n, k)", "factorial(n)/(factorial(k)*factorial(n - k))", True),
        ("binomial(n, k) + binomial(n, k + 1)", "binomial(n + 1, k + 1)", True),
        ("binomial(n, k)", "binomial(n, k + 1)", False), ("factorial(n + 1)", "(n + 1)*factorial(n)", True),
        ("factorial(n)", "n*factorial(n)", False), ("(-1)**n*(-1)**n", "1", True), ("(-1)**n", "cos(pi*n)", True),
        ("(-1)**n", "1", False), ("(-1)**n*x", "x", False), ("(1 - (-1)**n)/2", "Mod(n, 2)", True),
        ("(2*n + 1 - (-1)**n)/4", "floor((n + 1)/2)", True), ("(-1)**n*n", "Abs(n)*(-1)**n", False),
        ("Mod(n, 12)", "n", False), ("Mod(n, 10**5)", "n", False), ("Mod(n, 6)", "Mod(n, 12)", False),
        ("Mod(n + 12, 12)", "Mod(n, 12)", True), ("Mod(n, 3)", "n - 3*floor(n/3)", True), ("gcd(n, 7)", "1", False),
        ("gcd(n, k)*lcm(n, k)", "Abs(n*k)", True), ("gcd(n, k)", "k", False), ("gcd(12, 18)", "6", True),
        ("lcm(4, 6)", "12", True), ("ceiling(n/2)", "floor((n + 1)/2)", True),
        ("ceiling(x/2)", "floor((x + 1)/2)", False), ("floor(n/2) + ceiling(n/2)", "n", True),
        ("floor(n)", "n", False), ("sqrt(-n)*factorial(n)", "sqrt(n)*factorial(n)", False),
        ("floor(log(n)/log(10)) + 1", "ceiling(log(n + 1)/log(10))", True), ("Min(2**n, 10**9)", "2**n", False),
        ("floor(x)*factorial(n)", "x*factorial(n)", False), ("floor(n)*factorial(n)", "n*factorial(n)", True),
        ("Max(n, 20)*factorial(n)", "n*factorial(n)", False), ("2**(n + 3)", "8*2**n", True),
        ("x**(a + b)", "x**a*x**b", True), ("x**(a*b)", "x**a*x**b", False),
    ],
)  # fmt: skip
def test_formulas_of_integers(left: str, right: str, expected: bool) -> None:
    assert_equal(expected, left, right)


def test_agreement_at_many_integers_is_no_proof() -> None:
    """A polynomial with a thousand zeros at small integers and fractions is not zero, and its floor is another."""
    zeros = "*".join(f"(x - {zero})" for zero in range(-40, 41))
    assert_equal(False, f"x + {zeros}", "x")
    assert_equal(False, "Abs(x) + sin(pi*x)", "Abs(x)")
    assert_equal(False, f"factorial(n) + {zeros.replace('x', 'n')}", "factorial(n)")


def test_polynomials_and_their_neighbours() -> None:
    draw, x, y = random.Random(5), sympy.Symbol("x"), sympy.Symbol("y")
    for _ in range(40):
        factors = [draw.randint(-9, 9) * x + draw.randint(-9, 9) * y + draw.randint(1, 9) for _ in range(3)]
        wanted = sympy.Mul(*factors, evaluate=False)
        assert equal_expressions(wanted, sympy.expand(wanted))
        change = sympy.Rational(draw.choice([-1, 1]), 10 ** draw.choice([0, 9, 60])) * draw.choice([1, x, x * y**2])
        assert not equal_expressions(wanted, sympy.expand(wanted) + change)
        scale = draw.choice([-3, sympy.sqrt(2), sympy.Rational(2, 7)])
        assert proportional(wanted, sympy.expand(scale * wanted))
        assert not proportional(wanted, sympy.expand(scale * wanted) + change)


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        ("exp(999) + 1", "exp(999)", False), ("exp(-999)", "0", False), ("1 + exp(-999)", "1", False),
        ("10**(-60)", "0", False), ("10**(-100)", "2*10**(-100)", False), ("sqrt(2)*10**(-100)", "0", False),
        ("sqrt(2)*10**(-100)", "sqrt(8)*10**(-100)/2", True), ("sqrt(10**120 + 1)", "10**60", False),
        ("10**5000 + 1", "10**5000", False), ("2*10**5000", "10**5000*2", True),
        ("x + 2012**2012 - 2012**2012 + x", "2*x", True), ("2**(10**5)*x", "x*2**(10**5)", True),
        ("sqrt(2)*x + 10**(-60)", "sqrt(2)*x", False), ("exp(200)*x + x", "exp(200)*x", False),
        ("sqrt(2) + sqrt(3)", "sqrt(5 + 2*sqrt(6))", True), ("sqrt(2)*sqrt(3)", "sqrt(6)", True),
        ("sqrt(5 + 2*sqrt(6)) - sqrt(2) - sqrt(3)", "0", True), ("exp(pi*sqrt(163))", "640320**3 + 744", False),
        ("sin(1)**2 + cos(1)**2", "1", True), ("exp(I*pi)", "-1", True), ("(1 + I)**2", "2*I", True),
        ("1/(1 + I)", "(1 - I)/2", True), ("3 + 4*I", "3 - 4*I", False), ("floor(sqrt(2)**2)", "2", True),
        ("floor(1 - exp(-200))", "0", True), ("floor(log(8)/log(2))", "3", True),
        ("floor(10**30*sqrt(2))", "1414213562373095048801688724209", True),
        ("factorial(20)", "2432902008176640000", True), ("Mod(2**1000, 7)", "2", True),
        ("binomial(1000, 500)", "binomial(1000, 499)*501/500", True), ("binomial(-Rational(1, 2), 2)", "3/8", True),
        ("0/0", "0/0", False), ("1/0", "1/0", False), ("0/0", "0", False), ("x/0", "x/0", False),
        ("zoo", "zoo", False), ("nan", "nan", False), ("nan", "0", False), ("tan(pi/2)", "tan(pi/2)", False),
        ("log(0)", "log(0)", False), ("oo", "oo", True), ("oo", "-oo", False), ("oo", "10**9", False),
        ("0**0", "1", True), ("x**0", "1", True), ("x - x", "0", True), ("sin(x)**2 + cos(x)**2 - 1", "0", True),
        ("sqrt(x**2 + 1) - x", "1/(sqrt(x**2 + 1) + x)", True), ("x**1000 + 1", "x**1000", False),
        ("exp(exp(x))", "exp(exp(x)) + 1", False), ("x**(x**x)", "x**x**x", True),
        ("(x + y)**5000", "(x + y)**4999*(x + y)", True), ("Integral(t, (t, 0, x))", "x**2/2", True),
        ("x**(x**(x**x))", "x", False),
    ],
)  # fmt: skip
def test_numbers_and_undefined_values(left: str, right: str, expected: bool) -> None:
    assert_equal(expected, left, right)


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        ("y - 2*x", "4*x - 2*y", True), ("y - Abs(x - 5)", "2*Abs(5 - x) - 2*y", True),
        ("y - Abs(x - 5)", "y - x + 5", False), ("y - Min(x, 50)", "y - x", False),
        ("y - sqrt(x)*sqrt(x + 1)", "3*y - 3*sqrt(x*(x + 1))", True), ("y - root(x, 3)", "x**(1/3) - y", True),
        ("y - x", "y + x", False), ("y - x", "0*y - 0*x", False), ("y - x", "(y - x)*y", False),
        ("y - x", "(y - x)**2", False), ("y - x", "z - x", False), ("sqrt(2)*x - y", "2*x - sqrt(2)*y", True),
        ("factorial(n) - y", "2*factorial(n) - 2*y", True),
    ],
)  # fmt: skip
def test_equivalent_equations_are_multiples(left: str, right: str, expected: bool) -> None:
    assert proportional(read(left), read(right)) is expected
    assert proportional(read(right), read(left)) is expected
