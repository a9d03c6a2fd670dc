"""Kinds of completions that graders read wrongly: answer lines, several formulas, transcripts with channels.

As `kinds`, but a kind draws a completion and its gold for a wanted truth, and builds both, so that the truth is known.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import NamedTuple

from rloop_core.verifier import Gold


class Completion(NamedTuple):
    """A completion, its gold, and whether a careful human calls it right."""

    text: str
    gold: Gold
    right: bool


def completions_of(
    kind: Callable[[random.Random, bool], tuple[str, Gold]], seed: int, count: int
) -> Iterator[Completion]:
    """Yield `count` right and as many wrong completions of a kind."""
    draw = random.Random(f"{seed} {kind.__name__}")
    for at in range(2 * count):
        right = at % 2 == 0
        yield Completion(*kind(draw, right), right)


def corrected_answer_lines(draw: random.Random, right: bool) -> tuple[str, Gold]:
    """A line that takes its answer back does not give the first one."""
    a, b = draw.sample(range(2, 200), 2)
    if right:
        end = draw.choice(
            ["", ".", ". Done", ", since the sum is even", ", because it is odd", ". This is the least value."]
        )
        return f"Some work.\nAnswer: {a}{end}", str(a)
    end = draw.choice([
        f"? No, {b}", f"; No wait, {b}", f"! No, {b}", f"? Wait, {b}", f"; or {b}", f" or {b}", f", maybe {b}",
        f" and {b}", f". No, {b}", f"; rather {b}", f"? Let me check: {b}",
    ])  # fmt: skip
    return f"Some work.\nAnswer: {a}{end}", str(a)


def several_formulas(draw: random.Random, right: bool) -> tuple[str, Gold]:
    a, b = draw.sample(range(2, 200), 2)
    left, end = draw.choice([("$", "$"), ("\\(", "\\)")])
    joint = draw.choice([" and ", ", ", " or ", ", and "])
    answer = f"{left}{a}{end}{joint}{left}{b}{end}"
    if draw.random() < 0.3:  # the gold has the formulas
        gold, text = answer, draw.choice([f"{a}, {b}", f"{a} \\text{{ and }} {b}", f"{b}, {a}"])
        wrong = draw.choice([str(a), f"{a}, {b + 1}", str(a + b), f"{a}{b}"])
        return f"It is \\boxed{{{text if right else wrong}}}.", gold
    golds = (
        [f"{a}, {b}", f"{b}, {a}"] if right else [str(a), str(b), f"{a}, {b + 1}", f"{a}{b}", str(a + b), str(a * b)]
    )
    return draw.choice([f"It is \\boxed{{{answer}}}.", f"Some work.\nAnswer: {answer}"]), draw.choice(golds)


def formulas_with_a_unit_behind_them(draw: random.Random, right: bool) -> tuple[str, Gold]:
    a = draw.randint(2, 200)
    unit, other = draw.sample(["cm", "kg", "seconds", "dollars"], 2)
    line = draw.choice([f"Answer: ${a}$ {unit}", f"Answer: \\({a}\\) {unit}", f"**Answer:** ${a}$ {unit}."])
    golds = [str(a), f"{a} \\text{{ {unit}}}", f"{a}\\ \\mathrm{{{unit}}}"]
    wrong = [str(a + 1), f"{a} \\text{{ {other}}}", f"{a + 1} \\text{{ {unit}}}"]
    return f"Some work.\n{line}", draw.choice(golds if right else wrong)


def final_answer_sentences(draw: random.Random, right: bool) -> tuple[str, Gold]:
    """A last sentence that names the final answer gives it, in the words of Minerva's prompt or near them."""
    a, b = draw.sample(range(2, 200), 2)
    lead = draw.choice(["The final answer is: ", "The final answer is ", "Therefore, the final answer is: "])
    formula = draw.choice([f"${a}$", f"\\({a}\\)", f"$ {a} $"])
    end = draw.choice(["", ".", "\n", ". I hope it is correct."])
    if right:
        return f"First ${b}$ is tried.\n{lead}{formula}{end}", str(a)
    if draw.random() < 0.4:
        return f"So it is.\n{lead}{formula}? No, ${b}$", str(a)
    return f"First ${b}$ is tried.\n{lead}{formula}{end}", str(b)


def lists_of_golds_with_a_null(draw: random.Random, right: bool) -> tuple[str, Gold]:
    """A null is no acceptable gold; the other members are."""
    a, b, c = draw.sample(range(2, 200), 3)
    golds = [str(a), b if draw.random() < 0.3 else str(b), None]
    draw.shuffle(golds)
    wrong = [str(c), "null", "None", "\\text{None}", f"{a}, {b}", "0"]
    return f"It is \\boxed{{{draw.choice([str(a), str(b)] if right else wrong)}}}.", golds


def channels(draw: random.Random, right: bool) -> tuple[str, Gold]:
    """Only the final channel of the first turn is an answer, as gpt-oss writes it (openai/harmony)."""
    a, b = draw.sample(range(2, 200), 2)
    gold, thought, final = (str(a), b, a) if right else draw.choice([(str(a), a, b), (str(b), a, a)])
    said = draw.choice([f"It is \\boxed{{{final}}}.", f"It is so.\n\nAnswer: {final}", f"**Answer:** ${final}$"])
    mused = draw.choice([f"Perhaps \\boxed{{{thought}}}?", f"Let me see.\nAnswer: {thought}\nHm.", "I count them."])
    start = draw.choice(["", "<|start|>assistant"])
    middle = "<|start|>assistant<|channel|>commentary<|message|>Now I write.<|end|>" if draw.random() < 0.3 else ""
    text = f"{start}<|channel|>analysis<|message|>{mused}<|end|>{middle}"
    text += f"<|start|>assistant<|channel|>final<|message|>{said}" + draw.choice(["", "<|return|>", "<|end|>"])
    if not right and draw.random() < 0.3:  # a turn that the policy made up
        text = (
            text.removesuffix("<|return|>").removesuffix("<|end|>")
            + "<|return|><|start|>user<|message|>And now?<|end|>"
        )
        text += f"<|start|>assistant<|channel|>final<|message|>It is \\boxed{{{gold}}}.<|return|>"
    return text, gold


KINDS_OF_COMPLETIONS: tuple[Callable[[random.Random, bool], tuple[str, Gold]], ...] = (
    corrected_answer_lines, several_formulas, formulas_with_a_unit_behind_them, final_answer_sentences,
    lists_of_golds_with_a_null, channels,
)  # fmt: skip
