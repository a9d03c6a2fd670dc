"""One spelling for formulas that are set differently and mean the same: the cheapest comparison there is."""

from __future__ import annotations

import re
from functools import lru_cache

_SPACING = re.compile(
    r"(?<!\\)(?:\\[,;:!> ]|~|\\q?quad(?![A-Za-z])|\\(?:thin|med|thick)space(?![A-Za-z])"
    r"|\\(?:left|right|middle|[bB]igg?[lrm]?)(?![A-Za-z]))"
)
_SPACE = re.compile(r"\s+")
_SPELLINGS = (
    (re.compile(r"^\\(?:approx|simeq)(?![A-Za-z])"), ""),
    (re.compile(r"\\(?:[hv]space|h?phantom|tag)\*?\{[^{}]*\}"), " "),
    (re.compile(r"\\(?:text)?color\s*\{[^{}]*\}"), ""),
    (re.compile(r"\\(?:[lL]arge|LARGE|[hH]uge|small|normalsize|bf|bfseries|it|boldmath)(?![A-Za-z])"), ""),
    (re.compile(r"\\(?:mathbf|boldsymbol|bm|bold|underline)\s*(?=\{[^{}]*\d[^{}]*\})"), ""),
    (re.compile(r"\\[dtc]frac(?![A-Za-z])"), r"\\frac"),
    (re.compile(r"\\le(?:q|qslant)(?![A-Za-z])"), r"\\le"),
    (re.compile(r"\\ge(?:q|qslant)(?![A-Za-z])"), r"\\ge"),
    (re.compile(r"\\neq(?![A-Za-z])"), r"\\ne"),
    (re.compile(r"\\lt(?![A-Za-z])"), "<"),
    (re.compile(r"\\gt(?![A-Za-z])"), ">"),
    (re.compile(r"\\lbrace(?![A-Za-z])"), r"\\{"),
    (re.compile(r"\\rbrace(?![A-Za-z])"), r"\\}"),
    (re.compile(r"\\lbrack(?![A-Za-z])"), "["),
    (re.compile(r"\\rbrack(?![A-Za-z])"), "]"),
    (re.compile(r"\\infin(?![A-Za-z])|\\infty(?![A-Za-z])"), r"\\infty"),
    (re.compile(r"\\(?:mathbb|mathbf|Bbb)\s*\{?\s*R\s*\}?|\\R(?![A-Za-z])"), r"\\mathbb{R}"),
    (re.compile(r"\\varnothing(?![A-Za-z])"), r"\\emptyset"),
    (re.compile(r"\\[dt]?binom\s*(\w)\s*(\w)(?!\w)"), r"\\binom{\1}{\2}"),
    (re.compile(r"\\pmod\s*(\w)(?!\w)"), r"\\pmod{\1}"),
    (re.compile(r"\\bmod(?![A-Za-z])"), r"\\mod"),
)
_PRIMES = re.compile(r"\^\s*\{?((?:\s*\\prime)+)\s*\}?")
_FRACTION_DIGITS = re.compile(r"\\frac(?: *(?=\d)| +(?=[A-Za-z]))(\w) *(\w)")
_FRACTION_DIGIT_GROUP = re.compile(r"\\frac\s*(\w)\s*\{")
_FRACTION_GROUP_DIGIT = re.compile(r"\\frac\s*(\{[^{}]*\})\s*(\w)")
_INNER_SPACE = re.compile(r"(?<!\d) | (?!\d)")
_BRACED = re.compile(r"([\^_])\{(\w)\}")


@lru_cache(maxsize=65536)
def clean(text: str) -> str:
    """The text with single spaces, no sizing or spacing commands, and one spelling of each command."""
    if "\\" in text or "~" in text:
        text = _SPACING.sub(" ", text)
        if "\\" in text:
            for pattern, spelling in _SPELLINGS:
                text = pattern.sub(spelling, text)
            if "\\frac" in text:
                text = _FRACTION_DIGITS.sub(r"\\frac{\1}{\2}", text)
                text = _FRACTION_DIGIT_GROUP.sub(r"\\frac{\1}{", text)
                text = _FRACTION_GROUP_DIGIT.sub(r"\\frac\1{\2}", text)
    return _SPACE.sub(" ", text).strip()


def squeezed(text: str) -> str:
    """Clean text without the spaces that carry no meaning: all but those between two digits."""
    return _INNER_SPACE.sub("", text)


@lru_cache(maxsize=65536)
def key(text: str) -> str:
    """What two texts share when they are the same as written. Case is kept, since X is not x."""
    text = _BRACED.sub(r"\1\2", squeezed(clean(text)))
    return _PRIMES.sub(lambda m: "'" * m.group().count("prime"), text) if "\\prime" in text else text
