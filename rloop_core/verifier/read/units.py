"""Units of measurement: SI with its prefixes, everyday and American ones, money, angles, temperatures.

`parse_unit` reads words and symbols with powers and quotients (`km/h`, `m s^{-2}`, `kg m^2`, `square feet`, `miles per
hour`) into a dimension and an exact factor. Everything after the first `/` divides, as physicists write J/kg K. Months
and years have a dimension of their own, since a year has no exact number of days. Words that are no known unit (apples,
people) become a unit of words, singular and plural alike; words that only count (`units`, `total`) are no unit.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from rloop_core.verifier.read.tokens import GREEK, is_word, words

Dimension = tuple[tuple[str, int], ...]


class Unit(NamedTuple):
    """A unit: value in base units = value * factor * pi**pi + offset. An unknown one has words with powers alone."""

    dimension: Dimension = ()
    factor: Fraction = Fraction(1)
    offset: Fraction = Fraction(0)
    pi: int = 0
    words: tuple[tuple[str, int], ...] = ()


_SYMBOL_PREFIXES = {
    "f": -15, "p": -12, "n": -9, "u": -6, "m": -3, "c": -2, "d": -1, "h": 2, "k": 3, "M": 6, "G": 9, "T": 12
}  # fmt: skip
_WORD_PREFIXES = {
    "femto": -15, "pico": -12, "nano": -9, "micro": -6, "milli": -3, "centi": -2, "deci": -1, "hecto": 2, "kilo": 3,
    "mega": 6, "giga": 9, "tera": 12,
}  # fmt: skip
# names | dimension | factor [| offset]; names that begin with * take prefixes.
_TABLE = """
*m *meter *metre | m | 1
*g *gram *gramme | kg | 1/1000
*s *sec *second | s | 1
*A *ampere *amp | A | 1
K *kelvin | K | 1
*mol *mole | mol | 1
*N *newton | kg m s-2 | 1
*J *joule | kg m2 s-2 | 1
*W *watt | kg m2 s-3 | 1
*Pa *pascal | kg m-1 s-2 | 1
*V *volt | kg m2 s-3 A-1 | 1
*Hz *hertz | s-1 | 1
C *coulomb | A s | 1
*ohm *Ω | kg m2 s-3 A-2 | 1
*F *farad | kg-1 m-2 s4 A2 | 1
*T *tesla | kg s-2 A-1 | 1
*eV *electronvolt | kg m2 s-2 | 1602176634e-28
*cal *calorie | kg m2 s-2 | 4184e-3
erg | kg m2 s-2 | 1e-7
dyn dyne | kg m s-2 | 1e-5
*L *l *liter *litre | m3 | 1/1000
M | mol m-3 | 1000
*bar | kg m-1 s-2 | 100000
atm atmosphere | kg m-1 s-2 | 101325
mmHg torr | kg m-1 s-2 | 101325/760
Å angstrom | m | 1e-10
au a.u. | m | 149597870700
ly lightyear light-year | m | 9460730472580800
micron | m | 1e-6
in inch | m | 254e-4
ft foot | m | 3048e-4
yd yard | m | 9144e-4
mi mile | m | 1609344e-3
mph | m s-1 | 44704e-5
kph kmh kmph | m s-1 | 5/18
knot | m s-1 | 463/900
acre | m2 | 40468564224e-7
hectare | m2 | 10000
lb pound | kg | 45359237e-8
oz ounce | kg | 28349523125e-12
tonne | kg | 1000
gal gallon | m3 | 3785411784e-12
qt quart | m3 | 946352946e-12
pint | m3 | 473176473e-12
cup | m3 | 2365882365e-13
tablespoon tbsp | m3 | 2365882365e-13/16
teaspoon tsp | m3 | 2365882365e-13/48
min minute | s | 60
h hr hour | s | 3600
day | s | 86400
wk week | s | 604800
fortnight | s | 1209600
month | calendar | 1
y yr year | calendar | 12
decade | calendar | 120
century | calendar | 1200
bit | bit | 1
B *byte kB=1000 KB=1000 MB=1000000 GB=1000000000 TB=1000000000000 | bit | 8
$ dollar USD buck | dollar | 1
cent ¢ | dollar | 1/100
penny | dollar | 1/100
nickel | dollar | 1/20
dime | dollar | 1/10
€ euro EUR | euro | 1
£ GBP | sterling | 1
¥ yen JPY | yen | 1
yuan RMB CNY | yuan | 1
₹ rupee INR | rupee | 1
rad radian r | angle | 1
am a.m | morning | 1
degC celsius | K | 1 | 27315/100
degF fahrenheit | K | 5/9 | 45967/180
"""
_PLURALS = {
    "feet": "foot", "inches": "inch", "centuries": "century", "pennies": "penny", "henries": "henry", "secs": "sec",
    "hrs": "hr", "mins": "min", "yrs": "yr", "lbs": "lb", "people": "person", "persons": "person",
    "children": "child", "men": "man", "women": "woman", "mice": "mouse", "halves": "half", "dice": "die",
}  # fmt: skip


_ANY_CASE = words("am pm km cm mm kg ml mg ft lb oz mph kph hr min sec hz khz mhz usd")
_COUNTING = words("unit total approximately approx about exactly in of the a an altogether each only")
_COUNTING_PLAIN = frozenset(("unit", "total"))
_NEVER = words(
    # They change a value, or join it to another: conjunctions, prepositions, negations, arithmetic, numbers.
    "minimum maximum too many short long fewer extra another or and not no none but nor plus minus over mod modulo "
    "choose divided by is are be equals root if for where when while infinity infinite pi with without otherwise "
    "all any every squared cubed factorial squares cubes power powers times maybe perhaps probably percent mille "
    "least most than more less between almost nearly half negative positive inverse reciprocal to then vs versus "
    "through until till from out into added subtracted multiplied remainder rem r also i.e e.g x doubled tripled "
    "quadrupled halved score gross lakh lakhs crore crores ten tens twenty thirty forty fifty one two three four "
    "five six seven eight nine zero below above up down after before either neither instead rather wrong incorrect "
    "false never invalid rejected excluded isn't aren't don't fold bn mn mln promille"
) | {letter.lower() for letter in GREEK}
_ORDINAL = re.compile(r"(?:\w*(?:teen|tie|hundred|thousand|illion)|eleven|twelf)ths?|\w*illions?")
_ORDINALS = ("third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")
_SCALES = {"hundred": Fraction(100), "dozen": Fraction(12), "halve": Fraction(1, 2), "quarter": Fraction(1, 4)}
_SCALES |= {name: Fraction(1, part) for part, name in enumerate(_ORDINALS, 3)}
for _name, _power in (("thousand", 3), ("million", 6), ("billion", 9), ("trillion", 12)):
    _SCALES |= {_name: Fraction(10**_power), f"{_name}th": Fraction(1, 10**_power)}
_SCALES["hundredth"] = Fraction(1, 100)
_TOKEN = re.compile(
    r"\s*+(?:([A-Za-zΩÅ$¢€£¥₹][A-Za-z.'\-]*+)\s*+(?:\^\s*+(?:\{\s*+)?\(?([+-]?\d)\)?(?:\s*+\})?|(?<=[A-Za-zΩ])([+-]?\d)(?!\d))?|([/*()]))"
)
# Letters in a formula are variables, except these symbols and words of four letters or more.
_PLAIN_SYMBOLS = words(
    "mm cm dm km nm kg ml mL ft lb lbs mph kph kmh kmph yd mi hr hrs sec secs min mins yr yrs wk oz gal rad Hz kHz MHz "
    "GHz kJ kW kWh kPa eV keV MeV mol MB GB TB kB KB USD EUR GBP degC degF"
)
_METRES_PER_SECOND = re.compile(r"m ?/ ?s(?: ?\^ ?(?:2|\{2\}))?")
_MAX_PARTS = 9
_ODD_POWER = {"square": 2, "sq": 2, "sq.": 2, "cubic": 3, "cu": 3, "cu.": 3}
_POWER_AFTER = {"squared": 2, "cubed": 3}


def _fraction(text: str) -> Fraction:
    top, _, bottom = text.partition("/")
    return Fraction(top) / Fraction(bottom or 1)


def _dimension(text: str) -> Dimension:
    parts = (re.fullmatch(r"([A-Za-z]+?)(-?\d)?", part) for part in text.split())
    return tuple(sorted((part.group(1), int(part.group(2) or 1)) for part in parts if part))


@lru_cache(maxsize=1)
def _all_units() -> dict[str, Unit]:
    """Return the unit of every symbol and word, including those with a prefix."""
    known: dict[str, Unit] = {}
    prefixed: dict[str, Unit] = {}
    for line in _TABLE.strip().splitlines():
        names, dimension, factor, *offset = (part.strip() for part in line.split("|"))
        base = Unit(_dimension(dimension), _fraction(factor), _fraction(offset[0]) if offset else Fraction(0))
        for name in names.split():
            plain, _, multiple = name.removeprefix("*").partition("=")
            unit = base._replace(factor=base.factor * int(multiple or 1))
            known[plain] = unit
            if name.startswith("*"):
                prefixes = _WORD_PREFIXES if len(plain) > 3 and plain.islower() else _SYMBOL_PREFIXES
                for prefix, power in prefixes.items():
                    prefixed[prefix + plain] = unit._replace(factor=unit.factor * Fraction(10) ** power)
    degree = Unit((("angle", 1),), Fraction(1, 180), pi=1)
    known.update({"degree": degree, "deg": degree, "revolution": degree._replace(factor=Fraction(2))})
    known.update({"arcmin": degree._replace(factor=Fraction(1, 180 * 60)), "rev": known["revolution"]})
    known["arcsec"] = known["arcsecond"] = degree._replace(factor=Fraction(1, 180 * 3600))
    known["arcminute"] = known["arcmin"]
    prefixed["p.m"] = prefixed["pm"]  # ten p.m. is not ten a.m.
    known["kWh"] = Unit(_dimension("kg m2 s-2"), Fraction(3600000))
    return prefixed | known


@lru_cache(maxsize=4096)
def parse_unit(text: str, *, plain: bool = False, weak: bool = False) -> tuple[Fraction, Unit | None] | None:
    """Return the factor of the scale words and the unit; None when the text is no unit.

    Args:
        text: Words, symbols, powers, `/`, `per`; no LaTeX commands.
        plain: The text is part of a formula, not of `\\text{}`: only names that cannot be variables are units.
        weak: With `plain`, single letters are units too, because the other side has a unit.
    """
    factor, sign_of_powers, next_power = Fraction(1), 1, 1
    parts: list[tuple[str, Unit | None, int]] = []
    at = 0
    text = text.strip()
    if text in ("a", "an", "of", "the"):
        return None
    weak = weak or _METRES_PER_SECOND.fullmatch(text) is not None
    while at < len(text):
        match = _TOKEN.match(text, at)
        if not match:
            return None
        at = match.end()
        name, power, digit, sign = match.groups()
        if sign is not None:
            sign_of_powers = -1 if sign == "/" else sign_of_powers
            continue
        name = name.rstrip(".,-'") or name
        lower = name.casefold()
        if lower == "per":
            sign_of_powers = -1
        elif lower in _ODD_POWER:
            next_power = _ODD_POWER[lower]
        elif lower in _POWER_AFTER and parts:
            parts[-1] = (*parts[-1][:2], parts[-1][2] * _POWER_AFTER[lower])
        elif lower.removesuffix("s") in _SCALES and not parts and sign_of_powers > 0:
            factor *= _SCALES[lower.removesuffix("s")]
        elif any(
            part in _NEVER or part.rstrip("s") in _SCALES or _ORDINAL.fullmatch(part) for part in lower.split("-")
        ):
            return None
        elif lower.removesuffix("s") not in (_COUNTING_PLAIN if plain else _COUNTING) or text == "in":
            unit = _lookup(name)
            # A name that divides a unit is a unit too: km/h.
            if plain and not _is_unit_in_formula(name, unit, weak or (sign_of_powers < 0 and bool(parts))):
                return None
            parts.append((_stem(lower), unit, sign_of_powers * next_power * int(power or digit or 1)))
            next_power = 1
        if len(parts) > _MAX_PARTS or (parts and abs(parts[-1][2]) > _MAX_PARTS):
            return None
    return factor, _combined(parts)


def _lookup(name: str) -> Unit | None:
    known = _all_units()
    if name in known:
        return known[name]
    lower = name.casefold()
    if len(name) > 3 or lower in _ANY_CASE or lower in _PLURALS:
        for word in (lower, _PLURALS.get(lower, ""), lower.removesuffix("s")):
            if word in known and (len(word) > 2 or word in _ANY_CASE or lower in _PLURALS):
                return known[word]
    return None


def _is_unit_in_formula(name: str, unit: Unit | None, weak: bool) -> bool:
    """Return True if letters in a formula are a unit rather than variables."""
    if unit is not None:
        return weak or name in _PLAIN_SYMBOLS or len(name) > 3 or not name.isascii() or name == "day"
    lower = name.casefold()
    return lower in _PLURALS or lower in ("ways", "eggs") or (lower.endswith("s") and is_word(name))


def _stem(word: str) -> str:
    return _PLURALS.get(word, word if len(word) < 4 else word.removesuffix("s"))


def _combined(parts: list[tuple[str, Unit | None, int]]) -> Unit | None:
    """Multiply (name, unit, power) parts; a unit of words if one of them is unknown; None for no parts."""
    if not parts:
        return None
    powers: dict[str, int] = {}
    factor, pi = Fraction(1), 0
    for _, unit, power in parts:
        if unit is None:
            return Unit(words=tuple((stem, power) for stem, _, power in parts))
        factor *= unit.factor**power
        pi += unit.pi * power
        for base, exponent in unit.dimension:
            powers[base] = powers.get(base, 0) + exponent * power
    _, first, power = parts[0]
    offset = first.offset if first and len(parts) == 1 and power == 1 else Fraction(0)
    dimension = tuple(sorted((base, power) for base, power in powers.items() if power))
    return Unit(dimension, factor, offset, pi)
