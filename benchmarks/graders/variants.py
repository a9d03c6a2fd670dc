"""Variants of a gold: rewritings with the same value, and wrong answers that look like it, each with a name."""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction

from benchmarks.graders.shapes import (
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

Variant = Callable[[str], "str | None"]
"""Returns the variant of a gold, or None where it does not apply."""
FLIPPED = {"(": "[", "[": "(", ")": "]", "]": ")"}


def rewritings(gold: str) -> list[tuple[str, str]]:
    """Return (name, text) of every rewriting that applies and changes the spelling."""
    return _variants(gold, REWRITINGS)


def near_misses(gold: str) -> list[tuple[str, str]]:
    """Return (name, text) of every wrong answer that can be made."""
    return _variants(gold, MISSES)


def _variants(gold: str, kinds: dict[str, Variant]) -> list[tuple[str, str]]:
    texts = ((name, variant(gold)) for name, variant in kinds.items())
    return [(name, text) for name, text in texts if text is not None and text != gold]


def _grouped(separator: str) -> Variant:
    def rewrite(gold: str) -> str | None:
        value = integer(gold)
        return None if value is None or abs(value) < 1000 else f"{value:,}".replace(",", separator)

    return rewrite


def _number(form: str) -> Variant:
    """Place a number in a form such as `{} \\text{ cm}`."""
    return lambda gold: None if exact(gold) is None else form.replace("{}", gold, 1)


def _frac(negative: bool, numerator: int, denominator: int) -> str:
    return f"{'-' if negative else ''}\\frac{{{numerator}}}{{{denominator}}}"


def _slash(gold: str) -> str | None:
    value = fraction(gold)
    return None if value is None else f"{value.numerator}/{value.denominator}"


def _as_decimal(gold: str) -> str | None:
    """Write a fraction as a decimal if that ends."""
    value = fraction(gold)
    if value is None or value.denominator == 1 or 10**6 % value.denominator:
        return None
    return format((Decimal(value.numerator) / Decimal(value.denominator)).normalize(), "f")


def _as_fraction(gold: str) -> str | None:
    value = Fraction(gold) if DECIMAL.fullmatch(gold) else None
    if value is None or value.denominator == 1:
        return None
    return _frac(value < 0, abs(value.numerator), value.denominator)


def _unreduced(gold: str) -> str | None:
    value = fraction(gold)
    if value is None:
        return None
    return _frac(value < 0, 3 * abs(value.numerator), 3 * value.denominator)


def _mixed(gold: str) -> str | None:
    value = fraction(gold)
    if value is None or abs(value) < 1 or value.denominator == 1:
        return None
    whole, rest = divmod(abs(value), 1)
    return f"{'-' if value < 0 else ''}{whole}\\frac{{{rest.numerator}}}{{{rest.denominator}}}"


def _times_ten(gold: str) -> str | None:
    match = E_NOTATION.fullmatch(gold)
    return f"{match.group(1)} \\times 10^{{{int(match.group(2))}}}" if match else None


def _e_notation(form: str) -> Variant:
    """Move the point of a decimal or of e-notation: 671.02 is 6.7102e2."""

    def rewrite(gold: str) -> str | None:
        value = exact(gold) if DECIMAL.fullmatch(gold) or E_NOTATION.fullmatch(gold) else None
        if not value:
            return None
        digits, power = f"{Decimal(gold):e}".split("e")
        return form.replace("M", digits).replace("P", str(int(power)))

    return rewrite


def _reversed_list(gold: str) -> str | None:
    parts = listed(gold)
    return f"{parts[0]}{', '.join(reversed(parts[1]))}{parts[2]}" if parts else None


def _with_and(gold: str) -> str | None:
    parts = listed(gold)
    if not parts or parts[0]:
        return None
    return ", ".join(parts[1][:-1]) + " \\text{ and } " + parts[1][-1]


def _left_right(gold: str) -> str | None:
    parts = bracketed(gold)
    if not parts:
        return None
    inner = ", ".join(parts[1])
    return f"{parts[0]}{inner}{parts[2]}" if "\\left" in gold else f"\\left{parts[0]} {inner} \\right{parts[2]}"


def _inequality(gold: str) -> str | None:
    """Write an interval that cannot be a point as inequalities."""
    parts = bracketed(gold)
    if not parts or len(parts[1]) != 2 or (parts[0] == "(" and parts[2] == ")" and "\\infty" not in gold):
        return None
    low, high = parts[1]
    signs = {"(": "<", ")": "<", "[": "\\le", "]": "\\le"}
    left = "" if "infty" in low else f"{low} {signs[parts[0]]} "
    right = "" if "infty" in high else f" {signs[parts[2]]} {high}"
    return f"{left}x{right}"


def _word(form: str) -> Variant:
    def rewrite(gold: str) -> str | None:
        match = WORD.fullmatch(gold)
        return form.replace("W", match.group(1)) if match else None

    return rewrite


def _commuted(gold: str) -> str | None:
    """Reverse the terms of a sum."""
    if not is_formula(gold) or exact(gold) is not None:
        return None
    terms, depth, last = [], 0, 0
    for at, char in enumerate(gold):
        depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(char, 0)
        if char in "+-" and depth == 0 and at and gold[at - 1] not in "^_":
            terms.append(gold[last:at].strip())
            last = at
    terms.append(gold[last:].strip())
    if len(terms) < 2 or not all(terms) or "\\cdot" in gold:
        return None
    return " ".join(term if term[0] in "+-" else f"+{term}" for term in reversed(terms)).removeprefix("+").strip()


def _unicode(gold: str) -> str | None:
    text = gold.replace("-", "\u2212").replace("\\pi", "π").replace("\\infty", "∞").replace("^2", "²")
    return text if "\\" not in text and "^" not in text else None


def _plus_minus(gold: str) -> str | None:
    if len(re.findall(r"\\pm(?![a-z])", gold)) != 1 or "\\{" in gold or "\\pmod" in gold:
        return None
    plus, minus = gold.replace("\\pm", "+"), gold.replace("\\pm", "-")
    return f"{plus.removeprefix('+').strip()}, {minus}"


def _percent(factor: Fraction) -> Variant:
    def rewrite(gold: str) -> str | None:
        value = exact(gold.removesuffix("\\%")) if gold.endswith("\\%") else None
        return None if value is None else f"{float(value * factor):g}"

    return rewrite


def _spread(gold: str) -> str | None:
    parts = bracketed(gold) or listed(gold)
    return parts[0] + " ,\\, ".join(parts[1]) + parts[2] if parts else None


REWRITINGS: dict[str, Variant] = {
    "dfrac": lambda gold: gold.replace("\\frac", "\\dfrac"),
    "frac_short": lambda gold: re.sub(r"\\frac\{(\d)\}\{(\d)\}", r"\\frac\1\2", gold),
    "slash": _slash,
    "as_decimal": _as_decimal,
    "as_fraction": _as_fraction,
    "unreduced": _unreduced,
    "mixed": _mixed,
    "times_ten": _times_ten,
    "e_upper": lambda gold: gold.replace("e", "E") if E_NOTATION.fullmatch(gold) else None,
    "scientific_e": _e_notation("MeP"),
    "scientific_cdot": _e_notation("M \\cdot 10^{P}"),
    "comma": _grouped(","),
    "brace_comma": _grouped("{,}"),
    "thin_space": _grouped("\\,"),
    "point_zero": lambda gold: f"{gold}.0" if integer(gold) is not None else None,
    "leading_zero": lambda gold: f"0{gold}" if (integer(gold) or -1) >= 0 else None,
    "unit_text": _number("{} \\text{ cm}"),
    "unit_mathrm": _number("{}\\,\\mathrm{m/s}"),
    "unit_word": _number("{} meters"),
    "degrees": lambda gold: f"{gold}^\\circ" if integer(gold) is not None else None,
    "dollar_sign": lambda gold: f"\\${gold}" if (exact(gold) or 0) > 0 and not FRACTION.fullmatch(gold) else None,
    "assigned": _number("x = {}"),
    "approx": _number("\\approx {}"),
    "percent_dropped": _percent(Fraction(1)),
    "percent_as_share": _percent(Fraction(1, 100)),
    "inner_dollars": lambda gold: None if "$" in gold else f"${gold}$",
    "final_stop": lambda gold: f"{gold}.",
    "reversed_list": _reversed_list,
    "with_and": _with_and,
    "left_right": _left_right,
    "spread": _spread,
    "inequality": _inequality,
    "plain_word": _word("W"),
    "text_word": _word("\\textbf{W}"),
    "word_in_parentheses": _word("\\text{(W)}"),
    "commuted": _commuted,
    "parenthesised": lambda gold: f"\\left({gold}\\right)" if is_formula(gold) and len(entries(gold)) == 1 else None,
    "unicode": _unicode,
    "plus_minus": _plus_minus,
    "unknown_side": lambda gold: (
        re.sub(r"^[a-zA-Z] ?= ?", "", gold) if re.match(r"[a-zA-Z] ?= ?[^=]+$", gold) else None
    ),
}


def _plus_one(gold: str) -> str | None:
    value = integer(gold)
    return None if value is None else str(value + 1)


def _sign(gold: str) -> str | None:
    if exact(gold) == 0 or not is_formula(gold):
        return None
    if exact(gold) is not None:
        return gold[1:] if gold.startswith("-") else f"-{gold.removeprefix('+')}"
    return f"-\\left({gold}\\right)"


def _last_digit(gold: str) -> str | None:
    if not DECIMAL.fullmatch(gold):
        return None
    return gold[:-1] + str((int(gold[-1]) + 1) % 10)


def _power_of_ten(gold: str) -> str | None:
    if match := E_NOTATION.fullmatch(gold):
        return f"{match.group(1)}e{int(match.group(2)) + 1}"
    return f"{gold}0" if integer(gold) else None


def _inverted(gold: str) -> str | None:
    value = fraction(gold)
    if not value or abs(value.numerator) == value.denominator:
        return None
    return _frac(value < 0, value.denominator, abs(value.numerator))


def _rounded(gold: str) -> str | None:
    """Round a fraction whose decimal does not end to four places."""
    value = fraction(gold)
    if value is None or Fraction(round(value, 4)) == value:
        return None
    return f"{float(value):.4f}"


def _swapped(gold: str) -> str | None:
    """Swap an ordered pair (not an interval, which ends in infinity or in a square bracket)."""
    parts = bracketed(gold)
    if not parts or parts[0] + parts[2] != "()" or parts[1][0] == parts[1][-1] or "infty" in gold:
        return None
    return f"({', '.join([parts[1][-1], *parts[1][1:-1], parts[1][0]])})"


def _bracket(side: int) -> Variant:
    """Open a closed end of an interval or close an open one; infinity cannot be closed."""

    def miss(gold: str) -> str | None:
        parts = bracketed(gold)
        if not parts or len(parts[1]) != 2 or "infty" in parts[1][side] or not ({parts[0], parts[2]} & {"[", "]"}):
            return None
        left = FLIPPED[parts[0]] if side == 0 else parts[0]
        right = FLIPPED[parts[2]] if side == 1 else parts[2]
        return f"{left}{', '.join(parts[1])}{right}"

    return miss


def _one_less(gold: str) -> str | None:
    parts = listed(gold) or bracketed(gold)
    return f"{parts[0]}{', '.join(parts[1][:-1])}{parts[2]}" if parts else None


def _one_more(gold: str) -> str | None:
    parts = listed(gold)
    return f"{parts[0]}{', '.join([*parts[1], '987654'])}{parts[2]}" if parts else None


def _pi_as_number(gold: str) -> str | None:
    return "3.14159" if gold == "\\pi" else None


def _other_digit(gold: str) -> str | None:
    """Raise a formula's first digit by one, 9 to 1."""
    if exact(gold) is not None or not is_formula(gold):
        return None
    return re.sub(r"\d", lambda digit: str(int(digit.group()) % 9 + 1), gold, count=1)


def _other_base(gold: str) -> str | None:
    return f"{gold[:-1]}{int(gold[-1]) + 1}" if re.fullmatch(r"\d+_\d", gold) else None


MISSES: dict[str, Variant] = {
    "plus_one": _plus_one,
    "sign": _sign,
    "last_digit": _last_digit,
    "power_of_ten": _power_of_ten,
    "inverted": _inverted,
    "rounded": _rounded,
    "swapped": _swapped,
    "left_bracket": _bracket(0),
    "right_bracket": _bracket(1),
    "one_less": _one_less,
    "one_more": _one_more,
    "other_word": lambda gold: "\\text{perhaps}" if WORD.fullmatch(gold) else None,
    "formula_plus_one": lambda gold: f"{gold} + 1" if exact(gold) is None and is_formula(gold) else None,
    "formula_doubled": lambda gold: f"2\\left({gold}\\right)" if exact(gold) is None and is_formula(gold) else None,
    "formula_plus_x": lambda gold: f"{gold} + x" if exact(gold) is None and is_formula(gold) else None,
    "other_digit": _other_digit,
    "negated": lambda gold: f"\\text{{not }}{gold}" if is_formula(gold) else None,
    "word_squared": lambda gold: f"{gold}^2" if WORD.fullmatch(gold) else None,
    "pi_as_number": _pi_as_number,
    "other_base": _other_base,
    "guess_set": lambda gold: (
        f"\\{{{gold}, {int(gold) + 1}, {int(gold) + 2}\\}}" if integer(gold) is not None else None
    ),
    "guess_list": lambda gold: f"{int(gold) - 1}, {gold}" if integer(gold) is not None else None,
    "letter_e": lambda gold: gold.replace("1e-", "e - ") if re.fullmatch(r"1e-\d", gold) else None,
    "box_in_box": lambda gold: f"2 + \\boxed{{{gold}}}" if integer(gold) is not None else None,
    "code": lambda gold: f"int('{gold}')" if integer(gold) is not None else None,
}
