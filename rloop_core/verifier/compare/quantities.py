"""Answers with a unit: `5 \\text{ cm}^2`, `\\$5`, `3\\sqrt{2}` km/h, `60^\\circ`, `\\text{5 apples}`, 2.5 million.

Policy `units`:

- `compare`: units on both sides are converted (5000 m is 5 km), and different dimensions are wrong (5 m, 5 s; $5, 5
  euros). A unit on one side alone is dropped. Words that are no known unit are compared as words when both sides have
  them (5 apples is not 5 pears), and dropped against a known unit.
- `ignore`: units are dropped. `require`: as `compare`, and an answer without the gold's unit is wrong.

Units are read in `\\text{}`, `\\mathrm{}` and the like, with powers and quotients; as currency signs; as degrees; and
as plain words or symbols after a number. Plain single letters may be variables (`\\frac{37}{4} m`): they are a unit
only when the other side certainly has one. `million` and `dozen` multiply and are never dropped. Degrees are converted
to radians against a multiple of pi without a unit. 2 hours 30 minutes are 150 minutes.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from rloop_core.verifier.compare.latex import canonical_latex
from rloop_core.verifier.compare.numbers import Value, parse_number
from rloop_core.verifier.compare.units import Unit, parse_unit
from rloop_core.verifier.policies import Policies

_COMMAND = r"\\(?:text|textrm|textnormal|textit|textbf|mathrm|mathbf|mathit|mbox|rm|operatorname|unit)\s*"
_INSIDE = r"(?:[^{}]++|\{[^{}]*\})*+"
_TEXT = _COMMAND + rf"\{{({_INSIDE})\}}"
_POWER = r"(?:\s*\^\s*(?:-?\d|\{\s*[+-]?\d+\s*\}))"
_SIGN = r"\\(?:mu|AA|Omega|ell|degree)(?![A-Za-z])|\^\s*\{?\s*\\circ(?:\s*\})?"
_ATOM = rf"(?:{_COMMAND}\{{{_INSIDE}\}}{_POWER}?|(?:{_SIGN}){_POWER}?)"
_TAIL = re.compile(rf"(?:\s*(?:(?:\\cdot(?![A-Za-z])|\*|/)\s*)?{_ATOM})++(?:\s*/\s*[A-Za-z]++{_POWER}?)*+\s*[CFK]?$")
_QUOTIENT = re.compile(rf"\\frac\{{\s*{_TEXT}\s*\}}\{{\s*{_TEXT}({_POWER})?\s*\}}$")
_PLAIN_TAIL = re.compile(
    r"(?:(?<=[\d})])\s*|(?<=\\pi)\s+|(?<=\.)\s+)"
    r"[A-Za-z][A-Za-z.]*(?:\^\{?-?\d\}?)?(?:(?:\s*(?:/|\*|\\cdot\s)\s*|\s+)[A-Za-z][A-Za-z.]*(?:\^\{?-?\d\}?)?)*$"
)
_WHOLE_TEXT = re.compile(rf"\\(?:text|textrm|mathrm|mbox|textbf)\s*\{{([^{{}}]*\d[^{{}}]*)\}}({_POWER})?")
_CURRENCY = re.compile(
    r"([+-]?)\s*(\\?\$|€|£|¥|₹|\\(?:text|mathrm)\{\s*(?:US)?\\?\$\s*\}|\\(?:euro|pounds)(?![A-Za-z])|USD|US\\?\$)\s*"
)
_LAST_NUMBER = re.compile(r"(.*[A-Za-z}])[ ,]+(\d{1,20}(?:\.\d{1,20})?)")
_ENDS_OPEN = re.compile(r"(?:[_^=<>+*/(\[{,-]|\\(?:cdot|times|pm|le|ge|in|cup))$")
_MORE = re.compile(r"\\circ|\\degree|\\(?:sin|cos|tan|cot|sec|csc|log|ln|max|min)(?![A-Za-z])")
_ANGLE = (("angle", 1),)
_TEMPERATURE = (("K", 1),)


class Quantity(NamedTuple):
    """A formula, the factor of its scale words (`million`), and its unit or None."""

    body: str
    scale: int
    unit: Unit | None


class Scaled(NamedTuple):
    """The value factor * pi**pi * body + offset."""

    body: str
    factor: Fraction = Fraction(1)
    offset: Fraction = Fraction(0)
    pi: int = 0

    @property
    def text(self) -> str:
        """The value as one formula."""
        if self.factor == 1 and not self.offset and not self.pi:
            return self.body
        text = f"\\frac{{{self.factor.numerator}}}{{{self.factor.denominator}}}\\cdot({self.body})"
        text += f"\\cdot\\pi^{{{self.pi}}}" * bool(self.pi)
        return text + (f"+\\frac{{{self.offset.numerator}}}{{{self.offset.denominator}}}" if self.offset else "")

    def value(self, policies: Policies) -> Value | None:
        """The exact number without its power of pi; None when the body is no numeral."""
        value = parse_number(self.body, policies)
        return value and value._replace(number=value.number * self.factor + self.offset)


def in_same_unit(answer: str, gold: str, policies: Policies) -> tuple[Scaled, Scaled] | None:
    """Return both sides in the same unit, to be compared as numbers; None when their units make them differ."""
    left, right = split_quantity(answer), split_quantity(gold)
    if left.unit is None and right.unit is None:
        return _without_unit(left), _without_unit(right)
    if left.unit is None:
        left = split_quantity(answer, weak=True)
    elif right.unit is None:
        right = split_quantity(gold, weak=True)
    if policies.units == "ignore":
        return _without_unit(left), _without_unit(right)
    if left.unit is None or right.unit is None:
        if policies.units == "require" and right.unit is not None:
            return None
        if _in_degrees(left) and "\\pi" in right.body:
            return _in_base_units(left), _without_unit(right)
        if _in_degrees(right) and "\\pi" in left.body:
            return _without_unit(left), _in_base_units(right)
        return _without_unit(left), _without_unit(right)
    convertible = _are_convertible(left.unit, right.unit)
    if convertible is False:
        return None
    if convertible is None or left.unit[:4] == right.unit[:4]:
        return _without_unit(left), _without_unit(right)
    if left.unit.pi == right.unit.pi and not left.unit.offset and not right.unit.offset:
        return Scaled(left.body, left.scale * left.unit.factor / right.unit.factor), _without_unit(right)
    return _in_base_units(left), _in_base_units(right)


def _without_unit(quantity: Quantity) -> Scaled:
    return Scaled(quantity.body, Fraction(quantity.scale))


def _in_base_units(quantity: Quantity) -> Scaled:
    unit = quantity.unit
    assert unit is not None
    return Scaled(quantity.body, quantity.scale * unit.factor, unit.offset, unit.pi)


def _in_degrees(quantity: Quantity) -> bool:
    return quantity.unit is not None and quantity.unit.dimension == _ANGLE and quantity.unit.pi == 1


@lru_cache(maxsize=16384)
def split_quantity(text: str, *, weak: bool = False) -> Quantity:
    """Split an answer into formula, scale and unit; with `weak`, single letters after a number are units too."""
    text = canonical_latex(text)
    whole = _WHOLE_TEXT.fullmatch(text)
    if whole:
        text = whole.group(1).strip() + (whole.group(2) or "")
    if not any(char.isdigit() for char in text) and "\\pi" not in text and "\\sqrt" not in text:
        return Quantity(text, 1, None)
    money = _CURRENCY.match(text)
    currency: Unit | None = None
    if money and money.end() < len(text):
        sign = re.sub(r"\\(?:text|mathrm)\{|[\\} ]|US", "", money.group(2))
        parsed = parse_unit({"D": "$", "euro": "€", "pounds": "£", "": "$"}.get(sign, sign))
        currency = parsed[1] if parsed else None
        text = money.group(1) + text[money.end() :]
    body, scale, unit = _split(text, weak)
    last = _LAST_NUMBER.fullmatch(body) if unit and unit.dimension else None
    if last:  # 2 hours 30 minutes
        before, before_scale, larger = _split(last.group(1).rstrip(" ,"), weak)
        if larger and unit and larger.dimension == unit.dimension and before.isdigit() and len(before) < 20:
            total = int(before) * before_scale * larger.factor / unit.factor + Fraction(last.group(2)) * scale
            return Quantity(f"{total.numerator}/{total.denominator}", 1, unit)
    return Quantity(body, scale, currency or unit)


def _are_convertible(left: Unit, right: Unit) -> bool | None:
    """Return True if the units can be converted into each other, False if not; None where both are dropped."""
    if left.words and right.words:
        return left.words <= right.words or right.words <= left.words
    if left.words or right.words:
        # People against cm are dropped; ft/q against ft/s differ.
        known = (parse_unit(word) for word in left.words | right.words)
        return False if any(parsed and parsed[1] and parsed[1].dimension for parsed in known) else None
    if left.dimension == right.dimension:
        return True
    if {left.dimension, right.dimension} == {_ANGLE, _TEMPERATURE}:
        return None  # 25^\circ may be degrees Celsius
    return False


def _split(text: str, weak: bool) -> tuple[str, int, Unit | None]:
    """Return the formula before its unit, the scale, and the unit."""
    quotient = _QUOTIENT.search(text)
    if quotient and quotient.start():
        parsed = parse_unit(f"{quotient.group(1)}/{quotient.group(2)}{quotient.group(3) or ''}".replace("~", " "))
        if parsed:
            return text[: quotient.start()].rstrip(), *parsed
    tail = _TAIL.search(text)
    body = text[: tail.start()].rstrip() if tail else ""
    if tail and body and not _ENDS_OPEN.search(body) and not _MORE.search(body):
        parsed = parse_unit(_plain_unit(tail.group()))
        if parsed:
            inner, scale, plain = _split(body, False) if not parsed[1] else (body, 1, None)
            return inner, parsed[0] * scale, parsed[1] or plain
    plain_tail = _PLAIN_TAIL.search(text)
    if plain_tail and plain_tail.start():
        parsed = parse_unit(plain_tail.group().replace("\\cdot", " "), plain=True, weak=weak)
        if parsed:
            return text[: plain_tail.start()].rstrip(), *parsed
    return text, 1, None


def _plain_unit(tail: str) -> str:
    """Return a unit without LaTeX: `\\mathrm{~km}/\\mathrm{h}` as `km/h`, `^\\circ C` as `degC`."""
    tail = re.sub(
        r"(?:\^\s*\{?\s*\\circ\s*\}?|\\degree)\s*(?:\\(?:text|mathrm|rm)\s*\{\s*)?([CF])(?:\s*\})?$", " deg\\1", tail
    )
    tail = re.sub(r"\^\s*\{?\s*\\circ\s*\}?|\\degree(?![A-Za-z])", " degree ", tail)
    tail = re.sub(r"degrees?\s+(celsius|fahrenheit)", r"\1", tail, flags=re.IGNORECASE)
    tail = re.sub(r"\\mu\s*", " u", tail).replace("\\AA", " Å ").replace("\\Omega", "Ω").replace("\\ell", "L")
    tail = re.sub(r"\bu\s*\\(?:text|mathrm|rm|mbox)\s*\{\s*", r"\\text{u", tail)
    tail = re.sub(_TEXT, r" \1 ", tail)
    return tail.replace("\\cdot", " ").replace("~", " ").replace("\\$", "$")
