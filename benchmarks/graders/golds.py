"""Problems with worked solutions from the data folder beside the clone, their golds, and what kind of answer a gold is.

A kind is read from the spelling alone: it decides which variants can be made of a gold.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, TypeVar

DATA = Path(__file__).parents[3] / "shared" / "data"
T = TypeVar("T")
RARE = r"""[0, 1); (-1, 2]; [-3, \frac{1}{2}]; (0, 4) \cup (5, 9]; (-\infty, -2] \cup [3, \infty); \{1, 2, 3\}
\{-1, \frac{1}{2}\}; 2, 5; -1, \frac{1}{2}, 7; 1+\sqrt{2}, 1-\sqrt{2}; \pm 3; 50\%; 12.5\%; (1, 2, 3); (0.5, -4)
\left(-\frac{2}{3}, 0\right); 1 - 2i; 2^{100}; 10!; 2012^{2012}; x^2 + 3x - 1; \frac{x+1}{x-1}; 3t; 5h; \log_2 3
|x - 1|; x = 4; n = 12; \text{Monday}; \text{(C)}""".replace("\n", "; ").split("; ")
_FORMULA_CHARS = 60
INTEGER = re.compile(r"-?\d+")
DECIMAL = re.compile(r"-?\d*\.\d+")
E_NOTATION = re.compile(r"(-?\d+(?:\.\d+)?)e([+-]?\d+)")
FRACTION = re.compile(r"(-?)\\[dt]?frac\{?(\d+)\}?\{?(\d+)\}?")
TUPLE = re.compile(r"(\\left)?([(\[])(.*?)(\\right)?([)\]])")
WORD = re.compile(r"\\text\{\(?([A-Za-z]+)\)?\}")


@dataclass(frozen=True)
class Item:
    """One problem: its source, its worked solution, its gold as text."""

    source: str
    index: int
    solution: str
    gold: str


def lines(name: str) -> list[dict[str, Any]]:
    """Return the rows of `<name>.jsonl`."""
    with (DATA / f"{name}.jsonl").open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def items(name: str) -> list[Item]:
    """Return the problems of a data set that have a gold."""
    found = []
    for index, row in enumerate(lines(name)):
        if name == "gsm8k_test":  # `#### 18` is no grader's format: an answer line replaces it
            worked, gold = row["answer"].rsplit("####", 1)
            solution = f"{worked.strip()}\nAnswer: {gold.strip()}"
        else:
            solution = row["solution"]
            gold = last_box(solution) if name == "minerva_math" else str(row["answer"])
        if gold.strip():
            found.append(Item(name, index, solution, gold.strip()))
    return found


def last_box(text: str) -> str:
    """Return the content of the last `\\boxed{...}` without any grader's help; empty if there is none."""
    start = text.rfind("\\boxed{")
    depth = 0
    for at in range(max(start, 0) + 6, len(text)):
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if depth == 0:
            return text[start + 7 : at] if start >= 0 else ""
    return ""


def spread(items: list[T], count: int) -> list[T]:
    """Return at most `count` items at equal distances."""
    count = min(count, len(items))
    return [items[index * len(items) // count] for index in range(count)]


def golds() -> list[Item]:
    """Return each spelling once: MATH-500's and Minerva's without integers, some of Omni's, some integers, `RARE`."""
    chosen: dict[str, Item] = {}
    for name in ("math500", "minerva_math"):
        for item in items(name):
            if integer(item.gold) is None:
                chosen.setdefault(item.gold, item)
    omni = [item for item in items("omni_math_rule") if is_balanced(item.gold)]
    for chosen_kind, count in ((_plain_fraction, 40), (_formula, 160), (_rest, 30)):
        for item in spread([item for item in omni if chosen_kind(item.gold)], count):
            chosen.setdefault(item.gold, item)
    for name, count in (("math500", 30), ("omni_math_rule", 40), ("aime24", 10), ("gsm8k_test", 15)):
        for item in spread([item for item in items(name) if integer(item.gold) is not None], count):
            chosen.setdefault(item.gold, item)
    for index, gold in enumerate(RARE):
        chosen.setdefault(gold, Item("rare", index, "", gold))
    return list(chosen.values())


def _plain_fraction(gold: str) -> bool:
    return exact(gold) is not None and integer(gold) is None


def _formula(gold: str) -> bool:
    return exact(gold) is None and len(gold) < _FORMULA_CHARS and not _rest(gold)


def _rest(gold: str) -> bool:
    return any(mark in gold for mark in (",", "=", "\\text", "\\[", "\\(", "$", "\\le", "\\ge", "<"))


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
