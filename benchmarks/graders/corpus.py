"""A few thousand completions with a gold, most of them with a label fixed by their construction. No randomness."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.graders.layouts import BOX, LAYOUTS, PROSE, fill
from benchmarks.graders.shapes import exact, is_balanced
from benchmarks.graders.sources import Item, golds, items, lines, spread
from benchmarks.graders.variants import near_misses, rewritings

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
MOST = 60
"""Most rows of one rewriting or one kind of miss, spread over the golds it applies to."""
IN_FULL = {"sign", "formula_plus_one", "formula_plus_x", "formula_doubled"}
"""Misses made of every gold they apply to: a formula read in part is the likeliest false positive."""
CONVENTIONS = {"approx", "inequality"}
"""Rewritings that are the same answer by convention only: no label."""
HOSTILE = ["9^{9^{9}}", "10^{9}!", "((((5!)!)!)!)!", "2^{2^{2^{2^{2^{2}}}}}", "\\sqrt{" * 300 + "7" + "}" * 300]
"""Answers that must be judged wrong for the gold 7 quickly; the last one is 7 if it can be parsed: no label."""


@dataclass(frozen=True)
class Row:
    """One completion to be graded.

    Attributes:
        id: family/what/source of the gold.
        family: worked, notation, near_miss, other_gold, layout, example or hostile.
        what: The rewriting, the near miss, the layout or the data set.
        answer: The answer as written; None for a data set's own text.
        label: True if it is right, None where that is a matter of convention.
    """

    id: str
    family: str
    what: str
    completion: str
    gold: str | int | float | list[str]
    answer: str | None
    label: bool | None

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
"""Graders that ask for a format; prime_math and math_verify ask for the box, which the corpus has as written."""


def rows_in(form: str, rows: list[Row]) -> list[Row]:
    """Return the rows in a form; other than as written, only those whose answer is known.

    A worked solution keeps its text and gets the sentence with its gold at the end.
    """
    if form == AS_WRITTEN:
        return rows
    families = ("worked", "notation", "near_miss", "other_gold", "hostile")
    return [_rephrased(row, SENTENCES[form]) for row in rows if row.family in families]


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
    rows = [*_worked(), *_notations(), *_misses(), *_layouts(), *_examples(), *_hostile()]
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


def _notations() -> Iterator[Row]:
    for item in golds():
        yield _boxed("notation", "as_is", item, item.gold, True)
    for what, item, answer in _variants(rewritings):
        yield _boxed("notation", what, item, answer, None if what in CONVENTIONS else True)


def _misses() -> Iterator[Row]:
    for what, item, answer in _variants(near_misses):
        yield _boxed("near_miss", what, item, answer, False)
    items = golds()
    for index, item in enumerate(items):
        yield _boxed("other_gold", "other_gold", item, _different(item.gold, items, index), False)


def _variants(make: Callable[[str], list[tuple[str, str]]]) -> Iterator[tuple[str, Item, str]]:
    """Yield (what, gold, answer) of every kind of variant."""
    by_kind: dict[str, list[tuple[Item, str]]] = {}
    for item in golds():
        for what, answer in make(item.gold):
            by_kind.setdefault(what, []).append((item, answer))
    for what, pairs in by_kind.items():
        for item, answer in pairs if what in IN_FULL else spread(pairs, MOST):
            yield what, item, answer


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
    pairs = [
        ("42", "17"),
        ("1024", "1000"),
        ("\\frac{3}{4}", "\\frac{4}{3}"),
        ("(2, -5)", "(-5, 2)"),
        ("3\\sqrt{13}", "8"),
    ]
    for layout in LAYOUTS:
        for right, wrong in pairs:
            where = f"layout/{layout.name}/{right}"
            yield Row(where, "layout", layout.name, fill(layout.text, right, wrong), right, None, layout.right)


def _examples() -> Iterator[Row]:
    for row in lines("verifier_examples"):
        where = f"example/{row['id']}"
        yield Row(where, "example", row["category"], row["completion"], row["gold"], None, row["expected"])


def _hostile() -> Iterator[Row]:
    for number, answer in enumerate(HOSTILE):
        label = None if answer.startswith("\\sqrt") else False
        yield Row(f"hostile/{number}", "hostile", "hostile", BOX.replace("A", answer), "7", answer, label)
