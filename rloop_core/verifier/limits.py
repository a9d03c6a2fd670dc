"""Refuse text that could take for ever or all memory, before it reaches the math engine.

An answer beyond a limit is `wrong`, a gold beyond one is an `error`. Every gold of the supported problem sets is far
within the limits. They are the cheap first defence, against known hangs; the killable, memory-limited pool is the
second, against unknown ones.

The numbers and expansions of a formula are bounded without computing them: a sum or product of numbers by their
product, a power by base times exponent in logarithms, an expanded power of a sum by the number of its monomials.
Letters count as small: only what is written in digits can be too large.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

MAX_CHARS = 2000
MAX_DIGITS = 1000
MAX_DEPTH = 20
MAX_PARENTHESES = 8
MAX_FACTORIALS = 12
MAX_OPERATORS = 4
MAX_SIGNS = 5
MAX_ENTRIES = 100
MAX_DETERMINANT = 25
MAX_SYMBOLS = 500
MAX_EXPONENT = 100_000
MAX_VALUE_DIGITS = 20_000_000
MAX_FACTORIAL = 5000
MAX_BINOMIAL = 10_000
MAX_RANGE = 2500
MAX_TOWER = 3
MAX_EXPANDED_POWER = 200
MAX_MONOMIALS = 20_000

_DIGITS = re.compile(rf"\d{{{MAX_DIGITS + 1}}}")
_OPERATOR = re.compile(r"\\(?:sum|prod|int|iint|iiint|oint|lim|limsup|liminf)(?![A-Za-z])")
_SIGN = re.compile(r"\\(?:pm|mp)(?![A-Za-z])")
_DETERMINANT = re.compile(r"vmatrix|\\det(?![A-Za-z])")
_MATRIX_POWER = re.compile(r"matrix\}[)\s]*\^\s*\{?\s*\d{2}")
_DIVISIBILITY = re.compile(r"\\?(?:gcd|lcm|bmod|pmod|mod|lfloor|lceil)(?![A-Za-z])")
_LARGE_POWER = re.compile(r"\^\s*\{?\s*\d{5}")
_SYMBOL = re.compile(r"\\[A-Za-z]+|\\.|\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+|\*\*|[^\s]", re.DOTALL)
_IGNORED = re.compile(
    r"\\(?:left|right|[dt]frac(?=\W)|displaystyle|[bB]igg?[lr]?)(?![A-Za-z])|\\[,;:! ]|\{,\}|(?<=\d),(?=\d{3})|~"
)
_CLOSING = {"{": "}", "(": ")", "[": "]"}
_RANGES = {"\\sum", "\\prod", "\\bigcup", "\\bigcap"}
_BINOMIALS = {"\\binom", "\\tbinom", "\\dbinom"}


def unreadable(text: str) -> str | None:
    """Return why the text must not even be compared as written ("longer than ..."); None when it may be."""
    if len(text) > MAX_CHARS:
        return f"longer than {MAX_CHARS} characters"
    if _depth(text, "{([", "})]") > MAX_DEPTH:
        return f"nested deeper than {MAX_DEPTH} brackets"
    return None


def beyond_limits(text: str) -> str | None:
    """Return why the text must not be evaluated ("an exponent above ..."); None when it may be."""
    if len(text) > MAX_CHARS:
        return f"more than {MAX_CHARS} characters"
    if _DIGITS.search(text):
        return f"a number of more than {MAX_DIGITS} digits"
    if _depth(text, "{([", "})]") > MAX_DEPTH:
        return f"brackets nested deeper than {MAX_DEPTH}"
    if _depth(text, "([", ")]") > MAX_PARENTHESES or text.count("|") > 2 * MAX_PARENTHESES:
        return f"more than {MAX_PARENTHESES} nested parentheses"
    if text.count("!") > MAX_FACTORIALS:
        return f"more than {MAX_FACTORIALS} factorials"
    if "\\" in text:
        if len(_OPERATOR.findall(text)) > MAX_OPERATORS:
            return f"more than {MAX_OPERATORS} sums, products, integrals or limits"
        if len(_SIGN.findall(text)) > MAX_SIGNS:
            return f"more than {MAX_SIGNS} choices of sign"
        entries = text.count("&") + text.count("\\\\")
        if entries > MAX_ENTRIES or (entries > MAX_DETERMINANT and _DETERMINANT.search(text)):
            return f"a matrix of more than {MAX_ENTRIES} entries, or a determinant of more than {MAX_DETERMINANT}"
        if _MATRIX_POWER.search(text):
            return "a power of a matrix above 9"
    if _LARGE_POWER.search(text) and _DIVISIBILITY.search(text):
        return "a remainder, divisor or rounding of a power above 9999"
    try:
        _check_sizes(text)
    except _TooLargeError as error:
        return str(error)
    except RecursionError:
        return "commands nested too deeply"
    return None


def _depth(text: str, opening: str, closing: str) -> int:
    """Return the deepest nesting of these brackets."""
    depth = deepest = 0
    for char in text:
        if char in opening:
            depth += 1
            deepest = max(deepest, depth)
        elif char in closing:
            depth -= 1
    return deepest


class _TooLargeError(Exception):
    """The formula is beyond a limit, named by the message."""


@dataclass(slots=True)
class _Size:
    """A bound on the size of one part of a formula.

    Attributes:
        digits: Decimal digits of its numbers, multiplied together.
        terms: Monomials after expansion.
        open: It has a letter or a root, so a power of a sum must be expanded.
        tower: Levels of exponents.
    """

    digits: float = 0.0
    terms: int = 1
    open: bool = False
    tower: int = 0

    def times(self, other: _Size) -> _Size:
        """Return a bound on the product, which bounds the sum too."""
        terms = min(self.terms * other.terms, 10**9)
        return _Size(self.digits + other.digits, terms, self.open or other.open, max(self.tower, other.tower))

    def plus(self, other: _Size) -> _Size:
        """Return a bound on the sum, with every monomial of both."""
        return replace(self.times(other), terms=min(self.terms + other.terms, 10**9))


def _check_sizes(text: str) -> None:
    """Check the size of numbers and expansions.

    Raises:
        _TooLargeError: A number or expansion is beyond a limit.
        RecursionError: The formula is nested too deeply.
    """
    symbols = _SYMBOL.findall(_IGNORED.sub("", text).replace("**", "^"))
    if len(symbols) > MAX_SYMBOLS:
        raise _TooLargeError(f"more than {MAX_SYMBOLS} symbols")
    _sum(iter(symbols), "")


def _sum(symbols: Iterator[str], closing: str) -> _Size:
    """Bound the text up to the closing bracket, or to the end: the terms of a sum add up, their numbers multiply."""
    total, term = _Size(terms=0), _Size()
    last: _Size | None = None  # the factor to which a following ! or ^ applies; not yet in the term
    base, exponent = last, _Size()  # of the latest power
    command = ""
    for symbol in symbols:
        if symbol == closing:
            break
        if symbol == "!":
            last = _factorial(last, command)
            command = "!"
        elif symbol == "^":
            # 9^9^9 is read as 9^(9^9), the larger value.
            below, raised = (
                (base, _power(exponent, _argument(symbols), "")) if command == "^" else (last, _argument(symbols))
            )
            last = _power(below or _Size(), raised, command)
            base, exponent, command = below, raised, "^"
        elif symbol == "_":
            _argument(symbols)  # an index, or the lower end of a range
        elif symbol in "+-,;=<>&" or symbol in ("\\choose", "\\pm", "\\mp", "\\\\"):
            if symbol == "\\choose":
                _check_binomial(term.times(last or _Size()))
            term = term.times(last or _Size())
            total = total.plus(term)
            term, last, command = _Size(), None, ""
        else:
            term = term.times(last or _Size())
            last, command = _atom(symbol, symbols), symbol
            _check_value(term)
    term = term.times(last or _Size())
    _check_value(term)
    if term.terms > MAX_MONOMIALS:
        raise _TooLargeError(f"a product of more than {MAX_MONOMIALS} monomials")
    return total.plus(term)


def _atom(symbol: str, symbols: Iterator[str]) -> _Size:
    if symbol in _CLOSING:
        return _sum(symbols, _CLOSING[symbol])
    if symbol[0].isdecimal() or (symbol[0] == "." and len(symbol) > 1):
        mantissa, _, exponent = symbol.lower().partition("e")
        if exponent and (len(exponent) > 7 or abs(int(exponent)) > MAX_EXPONENT):
            raise _TooLargeError(f"an exponent above {MAX_EXPONENT}")
        return _Size(_log(mantissa) + abs(int(exponent or 0)))
    if symbol in _BINOMIALS:
        top = _argument(symbols)
        _check_binomial(top)
        return _Size(0.31 * _number(top.digits), 1, top.open, top.tower).times(_argument(symbols))
    if symbol == "\\exp":
        return _power(_Size(), _argument(symbols), symbol)
    if symbol == "\\sqrt":
        return _Size(open=True)
    return _Size(open=symbol.isalpha())


def _argument(symbols: Iterator[str]) -> _Size:
    """Bound the argument of a command, ^ or _: a group, or a sign and an atom."""
    symbol = next(symbols, "")
    while symbol in ("+", "-", "^"):
        symbol = next(symbols, "")
    return _atom(symbol, symbols) if symbol else _Size()


def _power(base: _Size, exponent: _Size, command: str) -> _Size:
    if command in _RANGES:
        if exponent.digits > math.log10(MAX_RANGE):
            raise _TooLargeError(f"a range of more than {MAX_RANGE} terms")
        return base
    if exponent.digits > math.log10(MAX_EXPONENT):
        raise _TooLargeError(f"an exponent above {MAX_EXPONENT}")
    tower = max(base.tower, exponent.tower) + 1
    if tower > MAX_TOWER:
        raise _TooLargeError(f"a power tower of more than {MAX_TOWER} levels")
    times = _number(exponent.digits)
    power = _Size(base.digits * times, 1, base.open or exponent.open, tower)
    _check_value(power)
    if base.open and base.terms > 1:
        if times > MAX_EXPANDED_POWER:
            raise _TooLargeError(f"a sum to a power above {MAX_EXPANDED_POWER}")
        whole = math.ceil(times)
        power.terms = min(math.comb(whole + base.terms - 1, whole), 10**9)
        if power.terms > MAX_MONOMIALS:
            raise _TooLargeError(f"a power of more than {MAX_MONOMIALS} monomials")
    return power


def _factorial(base: _Size | None, command: str) -> _Size:
    if command == "!":
        raise _TooLargeError("a double factorial")
    if base is None or (base.open and not base.digits):
        return base or _Size()
    if base.digits > math.log10(MAX_FACTORIAL):
        raise _TooLargeError(f"a factorial above {MAX_FACTORIAL}!")
    number = _number(base.digits)
    return _Size(number * max(base.digits, 0.3), 1, base.open, base.tower)


def _check_binomial(top: _Size) -> None:
    if top.digits > math.log10(MAX_BINOMIAL):
        raise _TooLargeError(f"a binomial coefficient above {MAX_BINOMIAL}")


def _check_value(size: _Size) -> None:
    if size.digits > MAX_VALUE_DIGITS:
        raise _TooLargeError(f"a number of more than {MAX_VALUE_DIGITS} digits")


def _log(numeral: str) -> float:
    """Return the decimal logarithm of a numeral without its point; at least log 2, so that a product bounds a sum."""
    digits = numeral.replace(".", "").lstrip("0")
    return max(0.302, len(digits) - len(digits[:15]) + math.log10(int(digits[:15]))) if digits else 0.302


def _number(digits: float) -> float:
    return math.pow(10, min(digits, 300.0))
