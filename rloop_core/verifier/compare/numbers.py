"""Read numerals of every usual notation as exact fractions. Nothing is rounded: 0.333 is not 1/3.

- Integers, leading zeros and signs; decimals with or without digits on either side of the point; `1.23e-4`, `1.23E-4`,
  `1.23\\times10^{-4}` (`\\cdot` and `*` too), `10^{-4}`; `\\frac{3}{4}`, `\\frac34`, `3/4`; `75\\%`.
- Mixed numbers `1\\frac{1}{2}` and `1 1/2` are sums by default, products by policy (`mixed_numbers`). An improper
  fraction makes no mixed number: `3\\frac{5}{2}` is not read here.
- A bar, dots or brackets repeat digits: `0.\\overline{3}`, `0.\\dot{3}` and `0.(3)` are 1/3. So is `0.333...`, if the
  digits show the repetition three times (twice for three digits and more); `3.141...` is not read.
- Thousands (policy `thousands`): `1,000.5` by default. `point`: a point before groups of three digits separates
  thousands, and a comma between digits is the decimal sign: 1.000,5. `none`: a comma always separates list entries.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from rloop_core.verifier.compare.latex import canonical_latex, remove_spaces
from rloop_core.verifier.limits import MAX_DIGITS
from rloop_core.verifier.policies import DEFAULT, Policies

_NUM = r"(?:\d+(?:\.\d*)?|\.\d+)"
_POWER = r"(?:10\^(?:\{\(?([+-]?\d{1,4})\)?\}|([+-]?\d{1,4}))|\{10\}\^(?:\{\(?([+-]?\d{1,4})\)?\}|([+-]?\d{1,4})))"
_TIMES = r"\{?(?:\\times|\\cdot|\\ast|\*|x)\}?"
_DECIMAL = re.compile(rf"([+-]?)({_NUM})(?:[eE]([+-]?\d{{1,4}})|{_TIMES}{_POWER})?")
_TEN = re.compile(rf"([+-]?){_POWER}")
_ARGUMENT = rf"\{{([+-]?{_NUM})\}}"
_FRAC = re.compile(rf"([+-]?)(\d*)\\[dtc]?frac{_ARGUMENT}{_ARGUMENT}")
_SLASH = re.compile(rf"([+-]?)\(?([+-]?{_NUM})\)?/\(?([+-]?{_NUM})\)?")
_MIXED = re.compile(r"([+-]?)(\d+) (\d+)/(\d+)")
_REPEATING = re.compile(
    r"([+-]?)(\d*)\.(\d*)(?:\\(?:overline|bar|dot)\{(\d+)\}|\\dot(\d)|\((\d+)\))|"
    r"([+-]?)(\d*)\.(\d+)(?:\.\.\.|\\[lc]?dots)"
)
_SHOWN_REPEATS = re.compile(r"(\d*?)(?:(\d{1,2}?)\2\2+|(\d{3,}?)\3+)(\d*)")
_PERCENT = re.compile(
    r"\s*(?:\\?%|\\(?:text|mathrm|textrm|mbox)\{\s*(?:\\?%|per ?cent)\s*\}|(?<=\d)\s*per ?cent)$", re.I
)
_COMMA_GROUPS = re.compile(r"(?<![\d.,])[1-9]\d{0,2}(?:,\d{3})+(?!\d|,\d|\.\d*,\d)")
_POINT_GROUPS = re.compile(r"(?<![\d.,])([1-9]\d{0,2}(?:\.\d{3})+)(?![\d.])")
_DECIMAL_COMMA = re.compile(r"(?<=\d),(?=\d)")
_SEPARATOR = re.compile(r",\s|;|\b(?:and|or)\b")
_OPENING = re.compile(r"\\[{}]|[()\[\]]")
_MAX_SHOWN = 60
_MAX_VALUE_CHARS = 3 * MAX_DIGITS


class Value(NamedTuple):
    """An exact number; `percent` and `decimal` (or power of ten) say how it was written."""

    number: Fraction
    percent: bool
    decimal: bool = False


@lru_cache(maxsize=65536)
def parse_number(text: str, policies: Policies = DEFAULT) -> Value | None:
    """Return the exact value of a numeral; None for any other text, units included (see `quantities`)."""
    if len(text) > _MAX_VALUE_CHARS or not any(char.isdigit() for char in text):
        return None
    if text.isascii() and text.isdigit():
        return Value(Fraction(int(text)), False) if len(text) <= MAX_DIGITS else None
    text = canonical_latex(remove_thousands(text, policies))
    percent = _PERCENT.search(text)
    if percent:
        text = text[: percent.start()].rstrip()
    if mixed := _MIXED.fullmatch(text):
        sign, whole, top, bottom = mixed.groups()
        return _mixed(sign, whole, top, bottom, bool(percent), policies)
    text = remove_spaces(text)
    while len(text) > 2 and (text[0], text[-1]) in (("(", ")"), ("{", "}")):
        text = text[1:-1]
    return _parse_plain(text, bool(percent), policies)


def equal_values(answer: Value, gold: Value, policies: Policies) -> bool:
    """Return True if two numbers are equal under the policies for percent signs and tolerance."""
    left, right = answer.number, gold.number
    tolerance = Fraction(str(policies.tolerance)) if policies.tolerance and (answer.decimal or gold.decimal) else None
    if policies.percent == "strict":
        return _close(left / 100 if answer.percent else left, right / 100 if gold.percent else right, tolerance)
    if _close(left, right, tolerance):
        return True
    if answer.percent == gold.percent:
        return False
    return _close(left / 100, right, tolerance) if answer.percent else _close(left, right / 100, tolerance)


def remove_thousands(text: str, policies: Policies = DEFAULT) -> str:
    """Remove thousands separators, and write decimal commas as points.

    `(1,234)` and `\\{1,234\\}` have two entries. So does `(1,000, 2,000)`: its spaces show which commas separate.
    """
    if policies.thousands == "point":
        if "." not in text and "," not in text:
            return text
        text = _POINT_GROUPS.sub(lambda m: m.group().replace(".", ""), text)
        return _DECIMAL_COMMA.sub(".", text)
    if policies.thousands == "none" or "," not in text:
        return text
    spaced = _SEPARATOR.search(text) is not None
    pieces, at, depth = [], 0, 0
    for match in _COMMA_GROUPS.finditer(text):
        before = text[at : match.start()]
        if not spaced:
            for bracket in _OPENING.finditer(before):
                depth += 1 if bracket.group() in ("(", "[", "\\{") else -1
        pieces.append(before)
        # A group inside a bracket that closes right after it may be a pair; a bare one is a number.
        pieces.append(match.group() if depth > 0 else match.group().replace(",", ""))
        at = match.end()
    return "".join(pieces) + text[at:]


def _close(answer: Fraction, gold: Fraction, tolerance: Fraction | None) -> bool:
    return answer == gold or (tolerance is not None and abs(answer - gold) <= tolerance * abs(gold))


def _parse_plain(text: str, percent: bool, policies: Policies) -> Value | None:
    if match := _DECIMAL.fullmatch(text):
        sign, digits, *exponents = match.groups()
        exponent_digits = next((part for part in exponents if part), None)
        exponent = int(exponent_digits or 0)
        value = _decimal_value(digits)
        if value is None or abs(exponent) > MAX_DIGITS:
            return None
        if exponent:
            value *= Fraction(10) ** exponent
        return Value(-value if sign == "-" else value, percent, "." in digits or exponent_digits is not None)
    if match := _TEN.fullmatch(text):
        exponent = int(next(part for part in match.groups()[1:] if part))
        power = Fraction(10) ** exponent if abs(exponent) <= MAX_DIGITS else None
        return None if power is None else Value(-power if match.group(1) == "-" else power, percent, True)
    if match := _FRAC.fullmatch(text):
        sign, whole, top, bottom = match.groups()
        return _mixed(sign, whole, top, bottom, percent, policies)
    if match := _SLASH.fullmatch(text):
        sign, top, bottom = match.groups()
        return _mixed(sign, "", top, bottom, percent, policies)
    match = _REPEATING.fullmatch(text)
    return _repeating(match, percent) if match else None


def _decimal_value(digits: str) -> Fraction | None:
    """Return the exact value of a signed decimal numeral; None for too many digits."""
    digits = digits.removesuffix(".")
    if len(digits) > MAX_DIGITS:
        return None
    return Fraction(int(digits)) if digits.lstrip("+-").isdigit() else Fraction(digits)


def _mixed(sign: str, whole: str, top: str, bottom: str, percent: bool, policies: Policies) -> Value | None:
    """Return whole + top/bottom; None for a zero denominator or an improper fraction after a whole number."""
    if len(whole) > MAX_DIGITS:
        return None
    numerator, denominator = _decimal_value(top), _decimal_value(bottom)
    if numerator is None or denominator is None or denominator == 0:
        return None
    value = numerator / denominator
    if whole and policies.mixed_numbers == "product":
        value *= int(whole)
    elif whole:
        if not 0 <= value < 1:
            return None
        value += int(whole)
    return Value(-value if sign == "-" else value, percent, "." in top or "." in bottom)


def _repeating(match: re.Match[str], percent: bool) -> Value | None:
    """Return the value of a.b(c): a.b + c / (10^len(b) (10^len(c) - 1))."""
    sign, whole, fixed, barred, dotted, bracketed, dots_sign, dots_whole, shown = match.groups()
    block = barred or dotted or bracketed
    if shown is not None:
        sign, whole = dots_sign, dots_whole
        repeats = _SHOWN_REPEATS.fullmatch(shown) if len(shown) <= _MAX_SHOWN else None
        if not repeats:
            return None
        fixed, short, long, rest = repeats.groups()
        block = short or long
        if not block.startswith(rest):
            return None
    if len(whole) + len(fixed) + len(block) > MAX_DIGITS:
        return None
    value = Fraction(int((whole or "0") + fixed), 10 ** len(fixed))
    value += Fraction(int(block), 10 ** len(fixed) * (10 ** len(block) - 1))
    return Value(-value if sign == "-" else value, percent)
