"""Compare formulas of numbers, roots, pi, i and variables by their normal forms.

`(x+1)^2` is `x^2+2x+1`, `\\frac{1}{\\sqrt{2}}` is `\\frac{\\sqrt{2}}{2}`, `2+3i` is `3i+2`. Different normal forms are
unequal. Other formulas (functions, symbolic exponents, quotients of polynomials) and ambiguous ones (`1/2x`, `f(x)`)
are left to the math engine. This needs no process: data sets use it to compare the golds of repeated problems.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache
from math import comb, factorial

from rloop_core.verifier.compare import exact_algebra
from rloop_core.verifier.compare.exact_algebra import Form, TooComplexError
from rloop_core.verifier.compare.latex import canonical_latex
from rloop_core.verifier.policies import Policies

_MAX_CHARS = 300
_MAX_NESTING = 20
_TOKEN = re.compile(
    r"\s*(?:(\d+(?:\.\d+)?|\.\d+)|([A-Za-z](?:_(?:[A-Za-z0-9]|\{[A-Za-z0-9]+\}))?)"
    r"|(\\[A-Za-z]+)(_(?:[A-Za-z0-9]|\{[A-Za-z0-9]+\}))?|([-+*/^(){}\[\]!]))"
)
_UNSUPPORTED = re.compile(r"(?<!\\)(?<![A-Za-z\\])[A-Za-z]{3,}|\\frac\{d|[a-zA-Z]'|\d[eE][+-]?\d")
_GREEK = re.compile(
    r"\\(?:alpha|beta|gamma|delta|epsilon|varepsilon|zeta|eta|theta|kappa|lambda|mu|nu|xi|rho|sigma|tau|phi|varphi|chi|psi"
    r"|omega|Gamma|Delta|Theta|Lambda|Xi|Sigma|Phi|Psi|Omega|ell)(?:_.*)?"
)
_TIMES = ("*", "\\cdot", "\\times", "\\ast")
_FUNCTIONS = "fghFGHPuv"
_OPENING = {"(": ")", "{": "}", "[": "]"}
_MAX_FACTORIAL = 400


def compare_closed_forms(answer: str, gold: str, policies: Policies) -> bool | None:
    """Return True if two formulas are equal, False if not; None when this module cannot parse one of them."""
    left = _form(answer, policies.mixed_numbers)
    right = _form(gold, policies.mixed_numbers) if left is not None else None
    if left is None or right is None:
        return None
    if left == right:
        return True
    return None if policies.tolerance and "." in answer + gold else False


@lru_cache(maxsize=16384)
def _form(text: str, mixed_numbers: str) -> Form | None:
    text = canonical_latex(text)
    if len(text) > _MAX_CHARS or _UNSUPPORTED.search(text):
        return None
    try:
        return _Parser(_tokens(text), mixed_numbers == "sum").whole()
    except (TooComplexError, ZeroDivisionError):
        return None


def _tokens(text: str) -> list[str]:
    tokens, at = [], 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if not match:
            raise TooComplexError
        number, name, command, subscript, sign = match.groups()
        tokens.append(number or name or ((command or "") + (subscript or "")) or sign)
        at = match.end()
    return tokens


class _Parser:
    """A recursive-descent parser."""

    def __init__(self, tokens: list[str], mixed: bool) -> None:
        self._tokens = tokens
        self._position = 0
        self._mixed = mixed
        self._depth = 0

    def whole(self) -> Form:
        form = self._sum()
        if self._position != len(self._tokens):
            raise TooComplexError
        return form

    def _next(self) -> str:
        return self._tokens[self._position] if self._position < len(self._tokens) else ""

    def _take(self, expected: str = "") -> str:
        word = self._next()
        if not word or (expected and word != expected):
            raise TooComplexError
        self._position += 1
        return word

    def _sum(self) -> Form:
        self._depth += 1
        if self._depth > _MAX_NESTING:
            raise TooComplexError
        total = exact_algebra.rational(0)
        sign = 1
        if self._next() in ("+", "-"):
            sign = -1 if self._take() == "-" else 1
        while True:
            total = exact_algebra.add(total, self._product(), sign)
            if self._next() not in ("+", "-"):
                break
            sign = -1 if self._take() == "-" else 1
        self._depth -= 1
        return total

    def _product(self) -> Form:
        form, divided = self._factor(), False
        while True:
            word = self._next()
            if word in _TIMES:
                self._take()
                form, divided = exact_algebra.multiply(form, self._signed()), False
            elif word == "/":
                self._take()
                form, divided = exact_algebra.multiply(form, exact_algebra.inverse(self._signed())), True
            elif word in ("", "+", "-", ")", "}", "]"):
                return form
            elif divided or word[0].isdigit() or word[0] == ".":
                raise TooComplexError  # 1/2x, x2
            else:
                form = exact_algebra.multiply(form, self._factor())

    def _signed(self) -> Form:
        if self._next() == "-":
            self._take()
            return exact_algebra.multiply(exact_algebra.rational(-1), self._factor())
        return self._factor()

    def _factor(self) -> Form:
        start = self._position
        form = self._base()
        word = self._tokens[start]
        if word.isdigit() and self._next() == "\\frac":
            return self._mixed_number(form)
        if len(word) == 1 and word.isalpha() and self._next() == "(":
            inside = self._tokens[self._position + 2 : self._position + 3]
            if word in _FUNCTIONS or inside == [")"] or inside == []:
                raise TooComplexError  # f(x)
        while self._next() in ("^", "!"):
            form = self._powered(form) if self._take() == "^" else self._factorial(form)
        return form

    def _powered(self, base: Form) -> Form:
        if self._next() == "{":
            exponent = exact_algebra.as_rational(self._group())
        elif re.fullmatch(r"\d", self._next()):
            exponent = Fraction(int(self._take()))
        else:
            raise TooComplexError
        if exponent is None:
            raise TooComplexError
        if exponent.denominator == 2:
            return exact_algebra.power(exact_algebra.square_root(base), exponent.numerator)
        if exponent.denominator != 1 or (not base and exponent <= 0):
            raise TooComplexError
        return exact_algebra.power(base, int(exponent))

    def _factorial(self, form: Form) -> Form:
        value = exact_algebra.as_rational(form)
        if value is None or value.denominator != 1 or not 0 <= value <= _MAX_FACTORIAL or self._next() == "!":
            raise TooComplexError
        return exact_algebra.rational(factorial(int(value)))

    def _mixed_number(self, whole: Form) -> Form:
        """Read 3\\frac{1}{2}: a sum where the policy says so and both parts are plain integers, else a product."""
        self._take()
        argument = self._position
        top, bottom = self._group(), self._group()
        fraction = exact_algebra.multiply(top, exact_algebra.inverse(bottom))
        plain = all(re.fullmatch(r"\d+|[{}]", word) for word in self._tokens[argument : self._position])
        value = exact_algebra.as_rational(fraction)
        if self._next() in ("^", "!"):
            raise TooComplexError
        if plain and self._mixed and value is not None and 0 < value < 1:
            return exact_algebra.add(whole, fraction)
        return exact_algebra.multiply(whole, fraction)

    def _group(self) -> Form:
        self._take("{")
        form = self._sum()
        self._take("}")
        return form

    def _base(self) -> Form:
        word = self._take()
        if word in _OPENING:
            form = self._sum()
            self._take(_OPENING[word])
            return form
        if word[0].isdigit() or word[0] == ".":
            return exact_algebra.rational(Fraction(word))
        if word == "i":
            return exact_algebra.square_root(exact_algebra.rational(-1))
        if word[0] == "\\":
            return self._command(word)
        if not word[0].isalpha():
            raise TooComplexError
        return exact_algebra.variable(re.sub("[{}]", "", word))

    def _command(self, word: str) -> Form:
        if word == "\\pi":
            return exact_algebra.pi()
        if word == "\\frac":
            return exact_algebra.multiply(self._group(), exact_algebra.inverse(self._group()))
        if word == "\\sqrt" and self._next() == "{":
            return exact_algebra.square_root(self._group())
        if word == "\\sqrt" and re.fullmatch(r"\d", self._next()):
            return exact_algebra.square_root(exact_algebra.rational(int(self._take())))
        if word == "\\binom":
            return self._binomial()
        if _GREEK.fullmatch(word):
            return exact_algebra.variable(re.sub("[{}]", "", word))
        raise TooComplexError

    def _binomial(self) -> Form:
        top, bottom = exact_algebra.as_rational(self._group()), exact_algebra.as_rational(self._group())
        if top is None or bottom is None or top.denominator * bottom.denominator != 1:
            raise TooComplexError
        if not 0 <= bottom <= top <= _MAX_FACTORIAL:
            raise TooComplexError
        return exact_algebra.rational(comb(int(top), int(bottom)))
