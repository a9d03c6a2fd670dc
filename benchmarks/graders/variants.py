"""Variants of a gold: rewritings with the same value, and wrong answers that look like it, each with a name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction

from benchmarks.graders.golds import (
    DECIMAL,
    E_NOTATION,
    FRACTION,
    WORD,
    bracketed,
    entries,
    exact,
    fraction,
    integer,
    is_formula,
    listed,
)

FLIPPED = {"(": "[", "[": "(", ")": "]", "]": ")"}


def rewritings(gold: str) -> dict[str, str]:
    """Return every rewriting that applies and changes the spelling, by name."""
    made = [*_numbers(gold), *_lists(gold), *_formulas(gold)]
    return {name: text for name, text in made if text != gold}


def near_misses(gold: str) -> dict[str, str]:
    """Return every wrong answer that can be made, by name."""
    made = [*_other_numbers(gold), *_other_lists(gold), *_other_formulas(gold)]
    return {name: text for name, text in made if text != gold}


def _frac(negative: bool, numerator: int, denominator: int) -> str:
    return f"{'-' if negative else ''}\\frac{{{numerator}}}{{{denominator}}}"


def _numbers(gold: str) -> Iterator[tuple[str, str]]:
    value, whole, ratio, power = exact(gold), integer(gold), fraction(gold), E_NOTATION.fullmatch(gold)
    if ratio is not None:
        top, bottom = abs(ratio.numerator), ratio.denominator
        yield "slash", f"{ratio.numerator}/{bottom}"
        yield "unreduced", _frac(ratio < 0, 3 * top, 3 * bottom)
        if bottom > 1 and 10**6 % bottom == 0:
            yield "as_decimal", format((Decimal(ratio.numerator) / Decimal(bottom)).normalize(), "f")
        if bottom > 1 and top > bottom:
            yield "mixed", f"{'-' if ratio < 0 else ''}{top // bottom}{_frac(False, top % bottom, bottom)}"
    if DECIMAL.fullmatch(gold) and value and value.denominator > 1:
        yield "as_fraction", _frac(value < 0, abs(value.numerator), value.denominator)
    if power:
        yield "times_ten", f"{power.group(1)} \\times 10^{{{int(power.group(2))}}}"
        yield "e_upper", gold.replace("e", "E")
    if value and (power or DECIMAL.fullmatch(gold)):  # the point moves: 671.02 is 6.7102e2
        digits, exponent = f"{Decimal(gold):e}".split("e")
        yield "scientific_e", f"{digits}e{int(exponent)}"
        yield "scientific_cdot", f"{digits} \\cdot 10^{{{int(exponent)}}}"
    if whole is not None:
        if abs(whole) >= 1000:
            for name, separator in (("comma", ","), ("brace_comma", "{,}"), ("thin_space", "\\,")):
                yield name, f"{whole:,}".replace(",", separator)
        yield "point_zero", f"{gold}.0"
        if whole > 0:
            yield "leading_zero", f"0{gold}"
        yield "degrees", f"{gold}^\\circ"
    if value is not None:
        yield "unit_text", f"{gold} \\text{{ cm}}"
        yield "unit_mathrm", f"{gold}\\,\\mathrm{{m/s}}"
        yield "unit_word", f"{gold} meters"
        yield "assigned", f"x = {gold}"
        yield "approx", f"\\approx {gold}"
        if value > 0 and not FRACTION.fullmatch(gold):
            yield "dollar_sign", f"\\${gold}"
    share = exact(gold.removesuffix("\\%")) if gold.endswith("\\%") else None
    if share is not None:
        yield "percent_dropped", f"{float(share):g}"
        yield "percent_as_share", f"{float(share / 100):g}"


def _lists(gold: str) -> Iterator[tuple[str, str]]:
    if parts := listed(gold):
        left, members, right = parts
        yield "reversed_list", f"{left}{', '.join(reversed(members))}{right}"
        if not left:
            yield "with_and", ", ".join(members[:-1]) + " \\text{ and } " + members[-1]
    if pair := bracketed(gold):
        left, members, right = pair
        inner = ", ".join(members)
        yield "left_right", f"{left}{inner}{right}" if "\\left" in gold else f"\\left{left} {inner} \\right{right}"
        if len(members) == 2 and (left + right != "()" or "\\infty" in gold):  # an interval, not a point
            low, high = members
            signs = {"(": "<", ")": "<", "[": "\\le", "]": "\\le"}
            below = "" if "infty" in low else f"{low} {signs[left]} "
            yield "inequality", f"{below}x" + ("" if "infty" in high else f" {signs[right]} {high}")
    if either := pair or parts:
        yield "spread", either[0] + " ,\\, ".join(either[1]) + either[2]


def _formulas(gold: str) -> Iterator[tuple[str, str]]:
    yield "dfrac", gold.replace("\\frac", "\\dfrac")
    yield "frac_short", re.sub(r"\\frac\{(\d)\}\{(\d)\}", r"\\frac\1\2", gold)
    yield "final_stop", f"{gold}."
    if "$" not in gold:
        yield "inner_dollars", f"${gold}$"
    if word := WORD.fullmatch(gold):
        yield "plain_word", word.group(1)
        yield "text_word", f"\\textbf{{{word.group(1)}}}"
        yield "word_in_parentheses", f"\\text{{({word.group(1)})}}"
    if is_formula(gold) and len(entries(gold)) == 1:
        yield "parenthesised", f"\\left({gold}\\right)"
    terms = _terms(gold) if is_formula(gold) and exact(gold) is None and "\\cdot" not in gold else []
    if len(terms) > 1 and all(terms):
        signed = [term if term[0] in "+-" else f"+{term}" for term in reversed(terms)]
        yield "commuted", " ".join(signed).removeprefix("+").strip()
    text = gold.replace("-", "\u2212").replace("\\pi", "π").replace("\\infty", "∞").replace("^2", "²")
    if "\\" not in text and "^" not in text:
        yield "unicode", text
    if len(re.findall(r"\\pm(?![a-z])", gold)) == 1 and "\\{" not in gold and "\\pmod" not in gold:
        plus, minus = gold.replace("\\pm", "+"), gold.replace("\\pm", "-")
        yield "plus_minus", f"{plus.removeprefix('+').strip()}, {minus}"
    if re.match(r"[a-zA-Z] ?= ?[^=]+$", gold):
        yield "unknown_side", re.sub(r"^[a-zA-Z] ?= ?", "", gold)


def _terms(gold: str) -> list[str]:
    """Split a sum before its signs outside of brackets, exponents and indices."""
    terms, depth, last = [], 0, 0
    for at, char in enumerate(gold):
        depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(char, 0)
        if char in "+-" and depth == 0 and at and gold[at - 1] not in "^_":
            terms.append(gold[last:at].strip())
            last = at
    return [*terms, gold[last:].strip()]


def _other_numbers(gold: str) -> Iterator[tuple[str, str]]:
    whole, ratio = integer(gold), fraction(gold)
    if whole is not None:
        yield "plus_one", str(whole + 1)
        yield "guess_set", f"\\{{{gold}, {whole + 1}, {whole + 2}\\}}"
        yield "guess_list", f"{whole - 1}, {gold}"
        yield "box_in_box", f"2 + \\boxed{{{gold}}}"
        yield "code", f"int('{gold}')"
    if DECIMAL.fullmatch(gold):
        yield "last_digit", gold[:-1] + str((int(gold[-1]) + 1) % 10)
    if power := E_NOTATION.fullmatch(gold):
        yield "power_of_ten", f"{power.group(1)}e{int(power.group(2)) + 1}"
    elif whole:
        yield "power_of_ten", f"{gold}0"
    if ratio and abs(ratio.numerator) != ratio.denominator:
        yield "inverted", _frac(ratio < 0, ratio.denominator, abs(ratio.numerator))
    if ratio is not None and Fraction(round(ratio, 4)) != ratio:
        yield "rounded", f"{float(ratio):.4f}"
    if re.fullmatch(r"1e-\d", gold):
        yield "letter_e", gold.replace("1e-", "e - ")
    if re.fullmatch(r"\d+_\d", gold):
        yield "other_base", f"{gold[:-1]}{int(gold[-1]) + 1}"


def _other_lists(gold: str) -> Iterator[tuple[str, str]]:
    parts, pair = listed(gold), bracketed(gold)
    if either := parts or pair:
        yield "one_less", f"{either[0]}{', '.join(either[1][:-1])}{either[2]}"
    if parts:
        yield "one_more", f"{parts[0]}{', '.join([*parts[1], '987654'])}{parts[2]}"
    if not pair:
        return
    left, members, right = pair
    if left + right == "()" and members[0] != members[-1] and "infty" not in gold:
        yield "swapped", f"({', '.join([members[-1], *members[1:-1], members[0]])})"
    if len(members) == 2 and {left, right} & {"[", "]"}:  # infinity cannot be closed
        inner = ", ".join(members)
        if "infty" not in members[0]:
            yield "left_bracket", f"{FLIPPED[left]}{inner}{right}"
        if "infty" not in members[1]:
            yield "right_bracket", f"{left}{inner}{FLIPPED[right]}"


def _other_formulas(gold: str) -> Iterator[tuple[str, str]]:
    value = exact(gold)
    if is_formula(gold):
        yield "negated", f"\\text{{not }}{gold}"
        if value is None:
            yield "sign", f"-\\left({gold}\\right)"
            yield "formula_plus_one", f"{gold} + 1"
            yield "formula_doubled", f"2\\left({gold}\\right)"
            yield "formula_plus_x", f"{gold} + x"
            yield "other_digit", re.sub(r"\d", lambda digit: str(int(digit.group()) % 9 + 1), gold, count=1)
        elif value:
            yield "sign", gold[1:] if gold.startswith("-") else f"-{gold.removeprefix('+')}"
    if WORD.fullmatch(gold):
        yield "other_word", "\\text{perhaps}"
        yield "word_squared", f"{gold}^2"
    if gold == "\\pi":
        yield "pi_as_number", "3.14159"
