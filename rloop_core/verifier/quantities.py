"""Answers with a unit: `5 \\text{ cm}^2`, `\\$5`, `3\\sqrt{2}` km/h, `60^\\circ`, `\\text{5 apples}`, 2.5 million.

Policy `units`:

- `compare`: with a unit on both sides they are converted (5000 m is 5 km) and different dimensions are wrong (5 m, 5
  s; $5, 5 euros). A unit on one side alone is dropped. Words that are no known unit are compared as words when both
  sides have them (5 apples is not 5 pears) and dropped against a known unit.
- `ignore`: units are dropped without a look. `require`: as `compare`, and an answer without the gold's unit is wrong.

Units are read in `\\text{}`, `\\mathrm{}` and the like, with powers and quotients; as currency signs; as degrees; and
as plain words or symbols after a number. Plain single letters could be variables (`\\frac{37}{4} m`): they are a unit
only when the other side has one for certain. `million` and `dozen` multiply and are never dropped. Degrees against a
multiple of pi without a unit are converted to radians. 2 hours 30 minutes are 150 minutes.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from rloop_core.verifier.canonical_latex import clean
from rloop_core.verifier.policies import Policies
from rloop_core.verifier.units import Unit, unit

_COMMAND = r"\\(?:text|textrm|textnormal|textit|textbf|mathrm|mathbf|mathit|mbox|rm|operatorname|unit)\s*"
_INSIDE = r"(?:[^{}]|\{[^{}]*\})*"
_TEXT = _COMMAND + rf"\{{({_INSIDE})\}}"
_POWER = r"(?:\s*\^\s*(?:-?\d|\{\s*[+-]?\d+\s*\}))"
_SIGN = r"\\(?:mu|AA|Omega|ell|degree)(?![A-Za-z])|\^\s*\{?\s*\\circ\s*\}?"
_ATOM = rf"(?:{_COMMAND}\{{{_INSIDE}\}}{_POWER}?|(?:{_SIGN}){_POWER}?)"
_TAIL = re.compile(rf"(?:\s*(?:(?:\\cdot(?![A-Za-z])|\*|/)\s*)?{_ATOM})+(?:\s*/\s*[A-Za-z]+{_POWER}?)*\s*[CFK]?$")
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
    """A formula, the scale of its words (`million`), and its unit, None where there is none."""

    body: str
    scale: int
    unit: Unit | None


class Scaled(NamedTuple):
    """factor * pi**pi * body + offset."""

    body: str
    factor: Fraction = Fraction(1)
    offset: Fraction = Fraction(0)
    pi: int = 0

    @property
    def text(self) -> str:
        """As one formula; the body itself where nothing changes it."""
        if self.factor == 1 and not self.offset and not self.pi:
            return self.body
        text = f"\\frac{{{self.factor.numerator}}}{{{self.factor.denominator}}}\\cdot({self.body})"
        text += f"\\cdot\\pi^{{{self.pi}}}" * bool(self.pi)
        return text + (f"+\\frac{{{self.offset.numerator}}}{{{self.offset.denominator}}}" if self.offset else "")


def pair(answer: str, gold: str, policies: Policies) -> tuple[Scaled, Scaled] | None:
    """Both sides in the same unit, to be compared as numbers; None when their units make them differ."""
    left, right = quantity(answer), quantity(gold)
    if left.unit is None and right.unit is None:
        return _plain(left), _plain(right)
    if left.unit is None:
        left = quantity(answer, weak=True)
    elif right.unit is None:
        right = quantity(gold, weak=True)
    if policies.units == "ignore":
        return _plain(left), _plain(right)
    if left.unit is None or right.unit is None:
        if policies.units == "require" and right.unit is not None:
            return None
        if _in_degrees(left) and "\\pi" in right.body:
            return _based(left), _plain(right)
        if _in_degrees(right) and "\\pi" in left.body:
            return _plain(left), _based(right)
        return _plain(left), _plain(right)
    same = _same_kind(left.unit, right.unit)
    if same is False:
        return None
    if same is None or left.unit[:4] == right.unit[:4]:
        return _plain(left), _plain(right)
    if left.unit.pi == right.unit.pi and not left.unit.offset and not right.unit.offset:
        return Scaled(left.body, left.scale * left.unit.factor / right.unit.factor), _plain(right)
    return _based(left), _based(right)


def _plain(one: Quantity) -> Scaled:
    return Scaled(one.body, Fraction(one.scale))


def _based(one: Quantity) -> Scaled:
    """In base units."""
    assert one.unit is not None
    return Scaled(one.body, one.scale * one.unit.factor, one.unit.offset, one.unit.pi)


def _in_degrees(one: Quantity) -> bool:
    return one.unit is not None and one.unit.dimension == _ANGLE and one.unit.pi == 1


@lru_cache(maxsize=16384)
def quantity(text: str, *, weak: bool = False) -> Quantity:
    """The parts of an answer; weak takes single letters after a number for units too."""
    text = clean(text)
    whole = _WHOLE_TEXT.fullmatch(text)
    if whole:
        text = whole.group(1).strip() + (whole.group(2) or "")
    if not any(char.isdigit() for char in text) and "\\pi" not in text and "\\sqrt" not in text:
        return Quantity(text, 1, None)
    money = _CURRENCY.match(text)
    currency: Unit | None = None
    if money and money.end() < len(text):
        sign = re.sub(r"\\(?:text|mathrm)\{|[\\} ]|US", "", money.group(2))
        found = unit({"D": "$", "euro": "€", "pounds": "£", "": "$"}.get(sign, sign))
        currency = found[1] if found else None
        text = money.group(1) + text[money.end() :]
    body, scale, one = _split(text, weak)
    last = _LAST_NUMBER.fullmatch(body) if one and one.dimension else None
    if last:  # 2 hours 30 minutes
        before, before_scale, larger = _split(last.group(1).rstrip(" ,"), weak)
        if larger and one and larger.dimension == one.dimension and before.isdigit() and len(before) < 20:
            total = int(before) * before_scale * larger.factor / one.factor + Fraction(last.group(2)) * scale
            return Quantity(f"{total.numerator}/{total.denominator}", 1, one)
    return Quantity(body, scale, currency or one)


def _same_kind(left: Unit, right: Unit) -> bool | None:
    """Whether the units can be converted; None where one of them is to be dropped."""
    if left.words and right.words:
        return left.words <= right.words or right.words <= left.words
    if left.words or right.words:
        # Words alone are dropped, as people against cm; ft/q against ft/s says something else.
        return False if any(_is_known(word) for word in left.words | right.words) else None
    if left.dimension == right.dimension:
        return True
    if {left.dimension, right.dimension} == {_ANGLE, _TEMPERATURE}:
        return None  # 25^\circ may be degrees Celsius
    return False


def _is_known(word: str) -> bool:
    found = unit(word)
    return bool(found and found[1] and found[1].dimension)


def _split(text: str, weak: bool) -> tuple[str, int, Unit | None]:
    """The formula before its unit, the scale, the unit."""
    quotient = _QUOTIENT.search(text)
    if quotient and quotient.start():
        found = unit(f"{quotient.group(1)}/{quotient.group(2)}{quotient.group(3) or ''}".replace("~", " "))
        if found:
            return text[: quotient.start()].rstrip(), *found
    tail = _TAIL.search(text)
    if tail:
        body = text[: tail.start()].rstrip()
        found = unit(_words(tail.group())) if body and not _ENDS_OPEN.search(body) and not _MORE.search(body) else None
        if found:
            inner, scale, plain = _split(body, False) if not found[1] else (body, 1, None)
            return inner, found[0] * scale, found[1] or plain
    plain_tail = _PLAIN_TAIL.search(text)
    if plain_tail and plain_tail.start():
        found = unit(plain_tail.group().replace("\\cdot", " "), plain=True, weak=weak)
        if found:
            return text[: plain_tail.start()].rstrip(), *found
    return text, 1, None


def _words(tail: str) -> str:
    """The tail without LaTeX: `\\mathrm{~km}/\\mathrm{h}` as `km/h`, `^\\circ C` as `degC`."""
    tail = re.sub(
        r"(?:\^\s*\{?\s*\\circ\s*\}?|\\degree)\s*(?:\\(?:text|mathrm|rm)\s*\{\s*)?([CF])(?:\s*\})?$", " deg\\1", tail
    )
    tail = re.sub(r"\^\s*\{?\s*\\circ\s*\}?|\\degree(?![A-Za-z])", " degree ", tail)
    tail = re.sub(r"degrees?\s+(celsius|fahrenheit)", r"\1", tail, flags=re.IGNORECASE)
    tail = re.sub(r"\\mu\s*", " u", tail).replace("\\AA", " Å ").replace("\\Omega", "Ω").replace("\\ell", "L")
    tail = re.sub(r"\bu\s*\\(?:text|mathrm|rm|mbox)\s*\{\s*", r"\\text{u", tail)
    tail = re.sub(_TEXT, r" \1 ", tail)
    return tail.replace("\\cdot", " ").replace("~", " ").replace("\\$", "$")
