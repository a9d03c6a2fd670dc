"""A formula in the dialect of math-verify's LaTeX reader: exact decimals, radians, explicit mixed numbers."""

from __future__ import annotations

import re

from rloop_core.verifier.policies import Policies

_DEGREES = re.compile(r"(\d+(?:\.\d+)?|\\frac\{\d+\}\{\d+\})\s*(?:\^\s*\{?\s*\\circ\s*\}?|\\degree(?![A-Za-z]))")
_PERCENT = re.compile(r"(\d+(?:\.\d*)?)\s*\\?%")
_DECIMAL = re.compile(r"(?<![\d.])(\d*)\.(\d+)(?![\d.])|(?<![\d.])(\d+)\.(?![\d.])")
_EXPONENT = re.compile(r"(?<![A-Za-z\d.}])(\d+(?:\.\d*)?|\.\d+)[eE]([+-]?\d{1,4})(?![\d.])")
_REPEATING = re.compile(r"(\d*)\.(\d*)\\(?:overline|bar)\{(\d+)\}")
_MIXED = re.compile(
    r"(?<![\d.^_{])(\d+)\s*(\\frac\{(\d+)\}\{(\d+)\})(?!\s*\^)|(?<![\d.^_{])(\d+) (\d+)/(\d+)(?![\d/^])"
)
_UNREADABLE = (
    (re.compile(r"(?<![A-Za-z])(?:np|numpy|math)\.(?=[a-z])"), ""),
    (re.compile(r"(?<![A-Za-z_^{\d])(\d+)\s*_\s*(?:\{(\d+)\}|(\d))"), r"\\Xi_{b\1x\2\3}"),  # read without its base
    (
        re.compile(
            r"\\(?:text|mathrm|textrm|operatorname)\s*\{\s*"
            r"((?:arc)?(?:sin|cos|tan)|cot|sec|csc|ln|log|exp|gcd|lcm|max|min)\s*\}"
        ),
        r"\\\1 ",
    ),
    (re.compile(r"(?<![\\A-Za-z])((?:arc)?(?:sin|cos|tan)|cot|sec|csc|ln|log|exp|sqrt)(?=[ ({\d\\])"), r"\\\1"),
    (re.compile(r"\\sqrt\s*\(([^()]*)\)"), r"\\sqrt{\1}"),
    (re.compile(r"\\exp\s*\{([^{}]*)\}"), r"e^{\1}"),
    (re.compile(r"\\(?:mathrm|text|mathit|rm)\s*\{\s*([ei])\s*\}"), r"\1"),
    (
        re.compile(r"([A-Za-z])(?:\^\s*\{?(?:\s*\\prime)+\s*\}?|'+)"),
        lambda m: f"{m[1]}_{{{'p' * max(1, m[0].count('prime') + m[0].count(chr(39)))}}}",
    ),
    (re.compile(r"\\lg(?![A-Za-z])"), r"\\log_{10}"),
    (re.compile(r"\\gamma(?![A-Za-z_])"), r"\\zeta_{gamma}"),  # read as a function of nothing
    (re.compile(r"\*\*"), "^"),
    (re.compile(r"\\[bB]igg?[lrm]?(?![A-Za-z])"), ""),
)


# Capitals that the reader takes for constants (E, I, \Gamma) become variables of another name.
_CAPITAL = re.compile(r"\\text\{[^{}]*\}|\\Gamma(?![A-Za-z(_])|\\[A-Za-z]+|([EI])(?:_(\w|\{[^{}]*\}))?")


def _capital(match: re.Match[str]) -> str:
    letter, index = match.groups()
    if letter is None:
        return "\\Xi_{Gamma}" if match.group() == "\\Gamma" else match.group()
    return f"\\Xi_{{{letter}{re.sub(r'[^A-Za-z0-9]', '', index or '')}}}"


def readable(text: str, policies: Policies) -> str:
    """The text in the reader's dialect: exact decimals, radians, explicit mixed numbers."""
    for pattern, replacement in _UNREADABLE:
        text = pattern.sub(replacement, text)
    joint = "+" if policies.mixed_numbers == "sum" else "\\cdot "
    text = _REPEATING.sub(_repeating, text)
    text = _EXPONENT.sub(lambda m: f"({m.group(1)}\\cdot 10^{{{m.group(2)}}})", text)
    text = _CAPITAL.sub(_capital, text)
    text = _MIXED.sub(lambda m: _mixed(m, joint), text)
    text = _DEGREES.sub(r"\\left(\\frac{\1\\pi}{180}\\right)", text)
    text = _PERCENT.sub(r"\\left(\\frac{\1}{100}\\right)", text)
    return _DECIMAL.sub(_fraction, text)


def _fraction(match: re.Match[str]) -> str:
    """A decimal as a fraction."""
    whole, places, bare = match.groups()
    if bare is not None:
        return bare
    return f"(\\frac{{{int((whole or '0') + places)}}}{{{10 ** len(places)}}})"


def _repeating(match: re.Match[str]) -> str:
    whole, fixed, block = match.groups()
    ones = 10 ** len(fixed)
    top = int((whole or "0") + fixed) * (10 ** len(block) - 1) + int(block)
    return f"(\\frac{{{top}}}{{{ones * (10 ** len(block) - 1)}}})"


def _mixed(match: re.Match[str], joint: str) -> str:
    whole, fraction, top, bottom, spaced, spaced_top, spaced_bottom = match.groups()
    if spaced is not None:
        whole, top, bottom = spaced, spaced_top, spaced_bottom
        fraction = f"\\frac{{{top}}}{{{bottom}}}"
    if int(top) >= int(bottom):
        joint = "\\cdot "  # 3\frac{5}{2} is a product
    return f"({whole}{joint}{fraction})"


def is_decimal(text: str) -> bool:
    """Whether a decimal or a power of ten is written in the text."""
    return bool(_DECIMAL.search(text) or _EXPONENT.search(text) or "10^" in text)
