"""What kind of answer a gold is, by its spelling alone: it decides which variants can be made of it."""

from __future__ import annotations

import re
from fractions import Fraction

INTEGER = re.compile(r"-?\d+")
DECIMAL = re.compile(r"-?\d*\.\d+")
E_NOTATION = re.compile(r"(-?\d+(?:\.\d+)?)e([+-]?\d+)")
FRACTION = re.compile(r"(-?)\\[dt]?frac\{?(\d+)\}?\{?(\d+)\}?")
TUPLE = re.compile(r"(\\left)?([(\[])(.*?)(\\right)?([)\]])")
WORD = re.compile(r"\\text\{\(?([A-Za-z]+)\)?\}")


def integer(gold: str) -> int | None:
    return int(gold) if INTEGER.fullmatch(gold) else None


def exact(gold: str) -> Fraction | None:
    """Return the value of a gold spelled as an integer, a decimal, e-notation or a plain fraction."""
    if INTEGER.fullmatch(gold) or DECIMAL.fullmatch(gold):
        return Fraction(gold)
    if match := E_NOTATION.fullmatch(gold):
        return Fraction(match.group(1)) * Fraction(10) ** int(match.group(2))
    return fraction(gold)


def fraction(gold: str) -> Fraction | None:
    """Return the value of a gold spelled `\\frac{a}{b}` or `\\frac ab` in digits."""
    match = FRACTION.fullmatch(gold)
    if not match or ("{" not in gold and len(match.group(2) + match.group(3)) != 2):
        return None
    value = Fraction(int(match.group(2)), int(match.group(3)))
    return -value if match.group(1) else value


def entries(text: str) -> list[str]:
    """Split at the commas outside of brackets."""
    parts, depth, last = [], 0, 0
    for at, char in enumerate(text):
        depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(char, 0)
        if char == "," and depth == 0:
            parts.append(text[last:at].strip())
            last = at + 1
    return [*parts, text[last:].strip()]


def bracketed(gold: str) -> tuple[str, list[str], str] | None:
    """Return (opening, entries, closing) of a tuple or interval of at least two entries."""
    match = TUPLE.fullmatch(gold)
    if not match or bool(match.group(1)) != bool(match.group(4)):
        return None
    parts = entries(match.group(3))
    whole = all(_is_matched(part) for part in parts)  # unlike (1,2) \cup (3,4)
    return (match.group(2), parts, match.group(5)) if len(parts) > 1 and whole and all(parts) else None


def _is_matched(text: str) -> bool:
    """Return True if every closing bracket has an opening one."""
    depth = 0
    for char in text:
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(char, 0)
        if depth < 0:
            return False
    return True


def listed(gold: str) -> tuple[str, list[str], str] | None:
    """Return (opening, entries, closing) of a set in braces or a bare list of at least two entries."""
    left, right = ("\\{", "\\}") if gold.startswith("\\{") and gold.endswith("\\}") else ("", "")
    inner = gold[len(left) : len(gold) - len(right)]
    if re.search(r"\d,\\?!? ?\d{3}(?!\d)", inner) or "=" in inner or "\\in" in inner or "\\begin" in inner:
        return None
    parts = entries(inner)
    return (left, parts, right) if len(parts) > 1 and all(parts) else None


def is_formula(gold: str) -> bool:
    """Return True if adding a term gives another expression."""
    blocked = r"= , \text \mbox \pm \le \ge < > \ldots _ \circ % np. \boxed $ \begin \[ \( \exp{ u(t) ' prime"
    return "\\in " not in gold and not any(mark in gold for mark in blocked.split())


def is_balanced(gold: str) -> bool:
    """Return True if braces match: a few golds were cut or doubly escaped by their data set."""
    return gold.count("{") == gold.count("}") and "\\\\frac" not in gold
