"""A few thousand completions with a gold, most with a label fixed by their construction; the same every time.

Problems with worked solutions are in the data folder beside the clone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, TypeVar

DATA = Path(__file__).parents[3] / "shared" / "data"
T = TypeVar("T")
_NUMBER = re.compile(r"-?\d*\.?\d+(?:e[+-]?\d+)?")
_FRACTION = re.compile(r"(-?)\\[dt]?frac(?:\{(\d+)\}\{(\d+)\}|(\d)(\d))")
WORKED = {"math500": 500, "minerva_math": 272, "aime24": 30, "gsm8k_test": 250}
"""Worked solutions from each data set; from Omni all that have a box, and `UNBOXED` that have none."""
UNBOXED = 50
DOUBTFUL = {
    "worked/omni_math_rule/27": "the solution's box is 2^{1011}, the gold 2",
    "worked/omni_math_rule/30": "the solution's box is 6.25^2 + 3.75^2 = 53.125, the gold 10",
    "worked/omni_math_rule/52": "two boxes, and the gold is the first",
    "worked/omni_math_rule/64": "a chain of congruent angles in the box, the gold is its last member",
    "worked/omni_math_rule/972": "the gold is an inequality, the box its right side",
    "worked/omni_math_rule/1063": "the gold writes binary digits with base 8, the box is right",
}
"""Worked solutions that contradict their gold, and why: no label."""
SPELLINGS = {"stop": "A.", "dollars": "$A$", "displaystyle": "\\displaystyle A"}
"""Other spellings of every gold that is a formula."""
MISSES = {"plus_one": "A + 1", "plus_x": "A + x", "doubled": "2\\left(A\\right)", "sign": "-\\left(A\\right)"}
"""Wrong answers made of every gold that is a formula: one that is read in part is the likeliest false positive."""
PROSE = "We follow the definitions and simplify each side until both agree."
BOX = PROSE + "\nSo the result is $\\boxed{A}$."
AFTERTHOUGHT = (
    "Let us look at it once more. The first step used only the definition, the second one rearranged the terms, "
    "and the third one collected them. None of these steps loses a case, since each of them can be undone. The bound "
    "that was used on the way is attained as well, so nothing can be improved. This completes the argument and the "
    "problem is done."
)
LAYOUTS: dict[str, tuple[str, bool | None]] = {
    "display": (PROSE + "\n\\[\n\\boxed{A}\n\\]", True),
    "box_with_space": (PROSE + "\nSo it is $\\boxed {A}$.", True),
    "nested_box": (PROSE + "\nSo it is $\\boxed{\\boxed{A}}$.", True),
    "box_in_equation": (PROSE + "\n$$x = \\boxed{A}$$", True),
    "equation_in_box": (PROSE + "\n$$\\boxed{x = A}$$", True),
    "answer_line": (PROSE + "\n\nAnswer: A", True),
    "answer_line_bold": (PROSE + "\n\n**Answer:** A", True),
    "answer_line_box": (PROSE + "\n\nAnswer: $\\boxed{A}$", True),
    "answer_then_text": (PROSE + "\n\nAnswer: A\n\n" + AFTERTHOUGHT, True),
    "box_then_text": (PROSE + "\nSo it is $\\boxed{A}$. " + AFTERTHOUGHT, True),
    "minerva": (PROSE + "\nFinal Answer: The final answer is $A$. I hope it is correct.", True),
    "box_corrected": ("We get $\\boxed{W}$. But a sign was lost. So the answer is $\\boxed{A}$.", True),
    "box_spoiled": ("We get $\\boxed{A}$. But a sign was lost. So the answer is $\\boxed{W}$.", False),
    "line_then_box": ("Answer: W\n\nThat forgets a case. With it we have $\\boxed{A}$.", True),
    "box_then_line": ("At first $\\boxed{W}$ comes out. That forgets a case.\n\nAnswer: A", None),
    "prose_mentions_wrong": ("One may think of W, but this fails. It is $\\boxed{A}$.", True),
    "marker_after": (PROSE + " $\\boxed{A}$<|im_end|>\n<|im_start|>user\nIs it $\\boxed{W}$?", True),
    "marker_before": (PROSE + " $\\boxed{W}$<|im_end|>\n<|im_start|>user\nNo, it is $\\boxed{A}$.", False),
    "answer_after_marker": (PROSE + "<|im_end|>\n<|im_start|>assistant\nAnswer: A", False),
    "unclosed_box": (PROSE + "\nSo the result is $\\boxed{A", False),
    "closed_then_unclosed": (PROSE + " At first $\\boxed{A}$. After a check it is $\\boxed{W", False),
    "prose_only": (PROSE + " The answer is A.", None),
    "hashes": (PROSE + "\n#### A", None),
    "bold_only": (PROSE + "\n\n**A**", None),
    "empty_box": (PROSE + " Since A occurs above, it is $\\boxed{}$.", False),
    "every_box": ("It is one of $\\boxed{W}$, $\\boxed{A}$ and $\\boxed{987654321}$.", False),
}
"""Completions with places for the right answer (A) and a wrong one (W), and whether each is correct; None where it is a
matter of convention whether it answers at all."""


@dataclass(frozen=True)
class Row:
    """One completion to be graded."""

    id: str
    """family/what/source of the gold."""
    family: str
    what: str
    """The spelling, the miss, the layout or the data set."""
    completion: str
    gold: str | int | float | list[str]
    answer: str | None
    """As written; None for a data set's own text."""
    label: bool | None
    """True if it is right, None where that is a matter of convention."""

    @property
    def request(self) -> dict[str, Any]:
        """The fields that a grader gets."""
        return {"id": self.id, "completion": self.completion, "gold": self.gold}


AS_WRITTEN = "as written"
SENTENCES = {
    "answer line": "Answer: A",
    "Minerva's sentence": "Final Answer: The final answer is $A$. I hope it is correct.",
}
OWN_FORM = {"math_dapo": "answer line", "minerva_math": "Minerva's sentence"}
"""Graders that ask for a format; math_verify asks for the box, which the corpus has as written."""


def rows_in(form: str, rows: list[Row]) -> list[Row]:
    """Return the rows in a form; other than as written, only those whose answer is known.

    A worked solution keeps its text and gets the sentence with its gold at the end.
    """
    if form == AS_WRITTEN:
        return rows
    return [_rephrased(row, SENTENCES[form]) for row in rows if row.family not in ("layout", "example")]


def _rephrased(row: Row, sentence: str) -> Row:
    answer = " ".join(str(row.gold if row.family == "worked" else row.answer).split())  # the formats are one line
    final = fill(sentence, answer, "")
    if row.family == "worked":
        label = row.label or (True if row.what == "unboxed" else None)
        return replace(row, completion=f"{row.completion}\n{final}", answer=answer, label=label)
    # A box inside such an answer is the only box there is, so it may well be the answer.
    return replace(row, completion=f"{PROSE}\n{final}", label=None if "\\boxed" in answer else row.label)


def corpus() -> list[Row]:
    """Return every row, in order, with unique ids."""
    rows = [*_worked(), *_formulas(), *_layouts(), *_examples()]
    assert len({row.id for row in rows}) == len(rows)
    return rows


def _worked() -> Iterator[Row]:
    omni = items("omni_math_rule")
    for name, count in WORKED.items():
        for item in spread(items(name), count):
            yield _solution(name, item, True)
    for item in omni:
        if "\\boxed" in item.solution:
            yield _solution("omni_math_rule", item, True if is_balanced(item.gold) else None)
    for item in spread([item for item in omni if "\\boxed" not in item.solution], UNBOXED):
        yield _solution("unboxed", item, None)


def _solution(what: str, item: Item, label: bool | None) -> Row:
    where = f"worked/{what}/{item.index}"
    return Row(where, "worked", what, item.solution, item.gold, None, None if where in DOUBTFUL else label)


def _formulas() -> Iterator[Row]:
    """Yield real golds as they are, in other spellings, altered, and for one another."""
    every = golds()
    for index, item in enumerate(every):
        yield _boxed("spelling", "as_is", item, item.gold, True)
        yield _boxed("other_gold", "other_gold", item, _different(item.gold, every, index), False)
        if is_formula(item.gold):
            for what, form in SPELLINGS.items():
                yield _boxed("spelling", what, item, form.replace("A", item.gold), True)
            for what, form in MISSES.items():
                if exact(item.gold) != 0 or what not in ("sign", "doubled"):
                    yield _boxed("miss", what, item, form.replace("A", item.gold), False)


def _boxed(family: str, what: str, item: Item, answer: str, label: bool | None) -> Row:
    where = f"{family}/{what}/{item.source}/{item.index}"
    return Row(where, family, what, BOX.replace("A", answer), item.gold, answer, label)


def _different(gold: str, items: list[Item], index: int) -> str:
    """Return the next gold that differs in value if both are numbers, else in its digits and letters."""
    for step in range(1, len(items)):
        other = items[(index + step) % len(items)].gold
        if exact(gold) is not None and exact(other) is not None:
            if exact(gold) != exact(other):
                return other
        elif sorted(filter(str.isalnum, gold)) != sorted(filter(str.isalnum, other)):
            return other
    raise ValueError(f"no other gold than {gold}")


def _layouts() -> Iterator[Row]:
    """Yield every layout with easily compared answers of several kinds: only how they are found matters."""
    pairs = {"42": "17", "1024": "1000", "\\frac{3}{4}": "\\frac{4}{3}", "(2, -5)": "(-5, 2)", "3\\sqrt{13}": "8"}
    for name, (text, label) in LAYOUTS.items():
        for right, wrong in pairs.items():
            completion = fill(text, right, wrong)
            yield Row(f"layout/{name}/{right}", "layout", name, completion, right, None, label)


def _examples() -> Iterator[Row]:
    for row in lines("verifier_examples"):
        where = f"example/{row['id']}"
        yield Row(where, "example", row["category"], row["completion"], row["gold"], None, row["expected"])


def fill(text: str, right: str, wrong: str) -> str:
    """Fill the places of a layout; `A` and `W` are places only where no letter or digit is beside them."""
    places = {"A": right, "W": wrong}
    return re.sub(r"(?<![^\W_])[AW](?![^\W_])", lambda place: places[place.group()], text)


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
