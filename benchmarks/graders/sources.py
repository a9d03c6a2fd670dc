"""Problems with worked solutions from the data folder beside the clone, and the golds that answers are made from."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.graders.shapes import exact, integer, is_balanced

DATA = Path(__file__).parents[3] / "shared" / "data"
T = TypeVar("T")
RARE = [
    *("[0, 1)", "(-1, 2]", "[-3, \\frac{1}{2}]", "(0, 4) \\cup (5, 9]", "(-\\infty, -2] \\cup [3, \\infty)"),
    *("\\{1, 2, 3\\}", "\\{-1, \\frac{1}{2}\\}", "2, 5", "-1, \\frac{1}{2}, 7", "1+\\sqrt{2}, 1-\\sqrt{2}", "\\pm 3"),
    *(
        "50\\%",
        "12.5\\%",
        "(1, 2, 3)",
        "(0.5, -4)",
        "\\left(-\\frac{2}{3}, 0\\right)",
        "1 - 2i",
        "2^{100}",
        "10!",
        "2012^{2012}",
    ),
    *("x^2 + 3x - 1", "\\frac{x+1}{x-1}", "3t", "5h", "\\log_2 3", "|x - 1|", "x = 4", "n = 12"),
    *("\\text{Monday}", "\\text{(C)}"),
]
_FORMULA_CHARS = 60


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
    read = {"minerva_math": _minerva, "gsm8k_test": _gsm8k}.get(name, _answered)
    return [
        Item(name, index, solution, gold)
        for index, row in enumerate(lines(name))
        for solution, gold in [read(row)]
        if gold
    ]


def _answered(row: dict[str, Any]) -> tuple[str, str]:
    return row["solution"], str(row["answer"]).strip()


def _minerva(row: dict[str, Any]) -> tuple[str, str]:
    return row["solution"], last_box(row["solution"]).strip()


def _gsm8k(row: dict[str, Any]) -> tuple[str, str]:
    """Replace GSM8K's `#### 18`, which is no grader's format, by an answer line."""
    worked, gold = row["answer"].rsplit("####", 1)
    return f"{worked.strip()}\nAnswer: {gold.strip()}", gold.strip()


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
