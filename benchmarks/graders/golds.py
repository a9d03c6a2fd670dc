"""Problems with worked solutions from the data folder beside the clone, their golds, and what these are worth."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, TypeVar

DATA = Path(__file__).parents[3] / "shared" / "data"
T = TypeVar("T")
_NUMBER = re.compile(r"-?\d*\.?\d+(?:e[+-]?\d+)?")
_FRACTION = re.compile(r"(-?)\\[dt]?frac(?:\{(\d+)\}\{(\d+)\}|(\d)(\d))")


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


def golds() -> list[Item]:
    """Return every spelling of MATH-500, Minerva and Omni that is no integer, once; of Omni some 200."""
    omni = [item for item in items("omni_math_rule") if is_balanced(item.gold) and not item.gold.lstrip("-").isdigit()]
    chosen = [item for name in ("math500", "minerva_math") for item in items(name)] + spread(omni, 200)
    return list({item.gold: item for item in chosen if not item.gold.lstrip("-").isdigit()}.values())


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


def exact(gold: str) -> Fraction | None:
    """Return the value of a gold spelled as a decimal number or a plain fraction."""
    if _NUMBER.fullmatch(gold):
        return Fraction(gold)
    if match := _FRACTION.fullmatch(gold):
        sign, top, bottom = match[1], match[2] or match[4], match[3] or match[5]
        return Fraction(int(sign + top), int(bottom))
    return None


def is_formula(gold: str) -> bool:
    """Return True if adding a term gives another expression."""
    blocked = r"= , \text \mbox \pm \le \ge < > \ldots _ \circ % np. \boxed $ \begin \[ \( \exp{ u(t) ' prime"
    return "\\in " not in gold and not any(mark in gold for mark in blocked.split())


def is_balanced(gold: str) -> bool:
    """Return True if braces match: a few golds were cut or doubly escaped by their data set."""
    return gold.count("{") == gold.count("}") and "\\\\frac" not in gold
