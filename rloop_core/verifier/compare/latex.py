"""Canonical LaTeX: one spelling for formulas that are set differently and mean the same. Names of variables."""

from __future__ import annotations

import re
from functools import lru_cache

_SPACING = re.compile(
    r"(?<!\\)(?:\\[,;:!> ]|~|\\q?quad(?![A-Za-z])|\\(?:thin|med|thick)space(?![A-Za-z])"
    r"|\\(?:left|right|middle|[bB]igg?[lrm]?)(?![A-Za-z]))"
)
_SPACE = re.compile(r"\s+")
_CANONICAL = (
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
_LETTER = (
    r"(?:[A-Za-z]|\\(?:alpha|beta|gamma|delta|epsilon|varepsilon|theta|lambda|mu|nu|rho|sigma|tau|phi|varphi|psi|omega|zeta"
    r"|eta|kappa|xi|chi|Delta|Omega|Phi|Gamma|Theta|Lambda|ell))"
)
_SUFFIX = r"(?:_(?:\w|\{[^{}]*\}|\\\w+))?'*(?:\^(?:\*|\\prime|\{\\prime\}))?(?:\([A-Za-z0-9, \\]*\))?"
_NAME = re.compile(
    rf"{_LETTER}{_SUFFIX}|[A-Z]{{2,4}}|\|[A-Z]{{2}}\||\[[A-Z]{{3,4}}\]|m\\angle\s*[A-Z]+|\([A-Za-z](?:, ?[A-Za-z])*\)"
    r"|\\(?:angle|overline|triangle|text|mathrm|mathbf|vec|hat|bar|dot)\s*\{?[A-Za-z ]+\}?(?:_\w)?"
)


@lru_cache(maxsize=65536)
def canonical_latex(text: str) -> str:
    """Return the text with single spaces, no sizing or spacing commands, and one spelling of each command."""
    if "\\" in text or "~" in text:
        text = _SPACING.sub(" ", text)
        if "\\" in text:
            for pattern, spelling in _CANONICAL:
                text = pattern.sub(spelling, text)
            if "\\frac" in text:
                text = _FRACTION_DIGITS.sub(r"\\frac{\1}{\2}", text)
                text = _FRACTION_DIGIT_GROUP.sub(r"\\frac{\1}{", text)
                text = _FRACTION_GROUP_DIGIT.sub(r"\\frac\1{\2}", text)
    return _SPACE.sub(" ", text).strip()


def remove_spaces(text: str) -> str:
    """Remove the spaces without meaning, that is all except those between two digits, from canonical LaTeX."""
    return _INNER_SPACE.sub("", text)


@lru_cache(maxsize=65536)
def latex_key(text: str) -> str:
    """Return a key that is equal for two texts that are the same as written. X and x have different keys."""
    text = _BRACED.sub(r"\1\2", remove_spaces(canonical_latex(text)))
    return _PRIMES.sub(lambda m: "'" * m.group().count("prime"), text) if "\\prime" in text else text


def is_name(text: str) -> bool:
    """Return True for the left side of `x = 5`: x, a_1, f(x), AB, \\angle A, |AB|, P(A)."""
    return _NAME.fullmatch(text) is not None
