"""Compare two answers with math-verify's LaTeX grammar, inside a worker process that may be killed at any time.

Only answers and golds within the limits get here. `compare.structure` compares the structure, as in the caller. The
formulas inside are parsed by latex2sympy, math-verify's grammar, and compared by `expressions`. math-verify's own
comparison serves what is no scalar (matrix expressions, sets by condition), without its SIGALRM timeouts: the pool
kills the worker instead. Nothing is evaluated as Python: math-verify's other parser is not used.

Decimals become fractions before they are parsed, so no float is compared: 0.1 is not 0.10000001, and no decimal is
`\\sqrt{2}`, however many digits it has (unless the policies set a tolerance).
"""

from __future__ import annotations

import logging
import os
import re
import warnings
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from rloop_core.verifier.compare.exact import compare_formulas
from rloop_core.verifier.compare.latex import canonical_latex
from rloop_core.verifier.compare.numbers import remove_thousands
from rloop_core.verifier.compare.quantities import in_same_unit
from rloop_core.verifier.compare.structure import compare_structures
from rloop_core.verifier.limits import beyond_limits
from rloop_core.verifier.policies import DEFAULT, Policies

# With gmpy2 a power tower aborts the process. sympy and mpmath read these when they are first imported, in the worker.
os.environ["MPMATH_NOGMPY"] = "1"
os.environ["SYMPY_GROUND_TYPES"] = "python"

_DOTS = re.compile(r"\.\.|\\[lc]?dots")
_DOLLAR = re.compile(r"(?<!\\)\$")
_SEAM = re.compile(r"\$\s*\$")  # between two formulas that are one
_WARMING = (
    "\\frac{\\sin(2x)}{\\cos^2 x}",
    "2^{n+1}-\\binom{n}{k}",
    "e^{-2t}+C_{1}\\ln t",
    "\\frac{x^2-1}{\\sqrt{x+1}}",
    "\\left\\lfloor\\frac{n}{2}\\right\\rfloor+n!",
    "\\log_{2} 8",
)
_DEGREES = re.compile(r"(\d+(?:\.\d+)?|\\frac\{\d+\}\{\d+\})\s*(?:\^\s*\{?\s*\\circ\s*\}?|\\degree(?![A-Za-z]))")
_PERCENT = re.compile(r"(\d+(?:\.\d*)?)\s*\\?%")
_DECIMAL = re.compile(r"(?<![\d.])(\d*)\.(\d+)(?![\d.])|(?<![\d.])(\d+)\.(?![\d.])")
_EXPONENT = re.compile(r"(?<![A-Za-z\d.}])(\d+(?:\.\d*)?|\.\d+)[eE]([+-]?\d{1,4})(?![\d.])")
_REPEATING = re.compile(r"(\d*)\.(\d*)\\(?:overline|bar)\{(\d+)\}")
_MIXED = re.compile(
    r"(?<![\d.^_{])(\d+)\s*(\\frac\{(\d+)\}\{(\d+)\})(?!\s*\^)|(?<![\d.^_{])(\d+) (\d+)/(\d+)(?![\d/^])"
)
_REWRITES = (
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
    # The grammar does not know 5!^2; larger powers of factorials stay unread, since they could take minutes.
    (re.compile(r"(?<!\d)(\d{1,3}|[A-Za-z])!(?=\s*\^\s*(?:\d|\{\d\}))"), r"(\1!)"),
    (re.compile(r"\\[bB]igg?[lrm]?(?![A-Za-z])"), ""),
)
# Capitals that the grammar takes for constants (E, I, \Gamma) become variables with another name.
_CAPITAL = re.compile(r"\\text\{[^{}]*\}|\\Gamma(?![A-Za-z(_])|\\[A-Za-z]+|([EI])(?:_(\w|\{[^{}]*\}))?")


def warm_up() -> None:
    """Import the engine and parse a few formulas.

    The grammar caches what it has seen, and workers inherit the cache of their template: later formulas parse two or
    three times as fast.
    """
    for text in _WARMING:
        compare_in_engine(text, f"{text}+1")


def compare_in_engine(answer: str, gold: str, policies: Policies = DEFAULT) -> bool:
    """Return True if two normalised answers are equal. Text that cannot be parsed equals nothing.

    Raises:
        MemoryError, RecursionError: The comparison needed more than the worker has.
    """
    return bool(compare_structures(answer, gold, policies, _compare_formulas, _compare_equations))


def _compare_formulas(answer: str, gold: str, policies: Policies) -> bool:
    equal = compare_formulas(answer, gold, policies)
    if equal is not None:
        return equal
    answer, gold = (canonical_latex(remove_thousands(side, policies)) for side in (answer, gold))
    quantities = in_same_unit(answer, gold, policies)
    if quantities is None or any(beyond_limits(quantity.text) for quantity in quantities):
        return False
    left, right = (_parse(quantity.text, policies) for quantity in quantities)
    if left is None or right is None:
        return False
    from rloop_core.verifier.engine.expressions import equal_expressions, is_scalar

    if is_scalar(left) and is_scalar(right):
        is_decimal = any(_has_decimal(quantity.text) for quantity in quantities)
        return _false_on_error(lambda: equal_expressions(left, right, policies.tolerance if is_decimal else 0.0))
    if is_scalar(left) or is_scalar(right):
        return False
    from math_verify import verify

    return bool(verify(right, left, timeout_seconds=None, raise_on_error=False))


def _compare_equations(left: tuple[str, str], right: tuple[str, str], policies: Policies) -> bool:
    """Return True if a = b and c = d are equivalent: a - b is a multiple of c - d."""
    from rloop_core.verifier.engine.expressions import is_scalar, proportional

    a, b, c, d = (_parse(text, policies) for text in (*left, *right))
    return all(map(is_scalar, (a, b, c, d))) and _false_on_error(lambda: proportional(a - b, c - d))


def _false_on_error(decide: Callable[[], bool]) -> bool:
    """Call `decide`; return False where sympy fails."""
    try:
        return bool(decide())
    except (MemoryError, RecursionError):
        raise
    except Exception:
        return False


@lru_cache(maxsize=4096)
def _parse(text: str, policies: Policies) -> Any:
    """Parse a formula into a sympy object; None for text that the grammar does not know."""
    text = _SEAM.sub(" ", text)
    if text.startswith("$") and text.endswith("$"):
        text = text[1:-1]
    if _DOTS.search(text) or _DOLLAR.search(text):
        return None  # the grammar would skip dots, and stop at a dollar sign
    latex2sympy, settings = _parser()
    try:
        return latex2sympy(engine_latex(text, policies), **settings)
    except (MemoryError, RecursionError):
        raise
    except Exception:
        return None


@lru_cache(maxsize=1)
def _parser() -> tuple[Any, dict[str, Any]]:
    from latex2sympy2_extended import NormalizationConfig, latex2sympy
    from latex2sympy2_extended.latex2sympy2 import ConversionConfig

    for name in ("math_verify", "latex2sympy2_extended"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore")
    # Its unit remover takes the variables t, h and o for units: 3t would equal 3. Mixed numbers follow our policy.
    normalisation = NormalizationConfig(units=False, malformed_operators=True, nits=True, boxed="none")
    conversion = ConversionConfig(interpret_as_mixed_fractions=False, lowercase_symbols=False)
    return latex2sympy, {"normalization_config": normalisation, "conversion_config": conversion}


def engine_latex(text: str, policies: Policies) -> str:
    """Rewrite a formula for the grammar: exact decimals, radians, explicit mixed numbers."""
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    joint = "+" if policies.mixed_numbers == "sum" else "\\cdot "
    text = _REPEATING.sub(_repeating, text)
    text = _EXPONENT.sub(lambda m: f"({m.group(1)}\\cdot 10^{{{m.group(2)}}})", text)
    text = _CAPITAL.sub(_capital, text)
    text = _MIXED.sub(lambda m: _mixed(m, joint), text)
    text = _DEGREES.sub(r"\\left(\\frac{\1\\pi}{180}\\right)", text)
    text = _PERCENT.sub(r"\\left(\\frac{\1}{100}\\right)", text)
    return _DECIMAL.sub(_decimal, text)


def _capital(match: re.Match[str]) -> str:
    letter, index = match.groups()
    if letter is None:
        return "\\Xi_{Gamma}" if match.group() == "\\Gamma" else match.group()
    return f"\\Xi_{{{letter}{re.sub(r'[^A-Za-z0-9]', '', index or '')}}}"


def _decimal(match: re.Match[str]) -> str:
    """Write a decimal as a fraction."""
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


def _has_decimal(text: str) -> bool:
    """Return True if the text contains a decimal or a power of ten."""
    return bool(_DECIMAL.search(text) or _EXPONENT.search(text) or "10^" in text)
