"""rloop's verifier against math-verify in process, on one core, the worker's start included.

Both judge the same completions against the same golds. The reference is math-verify as it is used elsewhere (parse the
completion, parse the boxed gold, compare), with its alarms off, which makes it faster. rloop's caller and its worker
are pinned to the same core.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from benchmarks.measure import Result

Item = tuple[str, str]
"""(completion, gold)"""
Answers = Callable[[random.Random], tuple[str, str]]
"""Returns a right answer and a wrong one."""

_SENTENCES = (
    "We start by writing the condition as ${a}x + {b}y = {c}$ and note that ${a}$ and ${b}$ share no factor.",
    "Substituting $y = {a} - x$ gives $x^2 - {b}x + {c} = 0$, which we solve for the smaller root.",
    "There are $\\binom{{{a}}}{{2}}$ ways to choose the pair, and each of them is counted ${b}$ times.",
    "Wait, let me check this step: ${a} \\cdot {b} = {c}$ would need another factor, so I try again.",
    "Hence the area is $\\frac{{{a}}}{{{b}}}$ of the whole, and the rest follows by symmetry.",
    "Now $f({a}) = {b}$ and $f({b}) = {c}$, so that the sequence repeats from there on.",
    "By the law of cosines the third side is $\\sqrt{{{c}}}$, a little more than ${a}$.",
    "That leaves ${a}$ cases; in the first one we find ${b}$, in the second one ${c}$.",
)


def bench() -> list[Result]:
    """Compare on integers, on chains of thought with answers of MATH-500's kinds, and where exact arithmetic fails."""
    core = min(os.sched_getaffinity(0))
    with _pinned_to(core):
        return [
            _compare("verifier: integers", _integers(100_000), 100, reference_share=0.02),
            _compare("verifier: chain of thought, 1.5 KB", _thoughts(3000, 1500), 1.5),
            _compare("verifier: chain of thought, 6 KB", _thoughts(2000, 6000), 1.5),
            _compare("verifier: 1.5 KB, no answer exact", _thoughts(1000, 1500, _transcendental), 1.5),
        ]


def _compare(what: str, items: list[Item], bar: float, reference_share: float = 1.0) -> Result:
    sample = items[: int(len(items) * reference_share)]
    reference = len(sample) / _seconds_of_math_verify(sample)
    seconds, right = _seconds_of_rloop(items)
    rate = len(items) / seconds
    detail = f"{rate:,.0f} against {reference:,.0f} a second and core; {right} of {len(items)} correct"
    return Result(f"{what} / math-verify", rate / reference, bar, "x", detail, at_least=True)


def _seconds_of_math_verify(items: list[Item]) -> float:
    import logging

    from math_verify import parse, verify

    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    verify(parse("\\boxed{1}", parsing_timeout=None), parse("\\boxed{1}", parsing_timeout=None), timeout_seconds=None)
    started = time.perf_counter()
    for completion, gold in items:
        wanted = parse(f"\\boxed{{{gold}}}", parsing_timeout=None)
        verify(wanted, parse(completion, parsing_timeout=None), timeout_seconds=None)
    return time.perf_counter() - started


def _seconds_of_rloop(items: list[Item]) -> tuple[float, int]:
    from rloop_core.verifier import Verdict, Verifier

    started = time.perf_counter()
    with Verifier() as verifier:
        judged = verifier.judge_many([(completion, gold, True) for completion, gold in items])
    seconds = time.perf_counter() - started
    return seconds, sum(judgement.verdict is Verdict.correct for judgement in judged)


def _integers(count: int) -> list[Item]:
    draw = random.Random(1)
    items = []
    for _ in range(count):
        left, right = draw.randrange(1000), draw.randrange(1000)
        answer = left + right + draw.randrange(2)
        items.append((f"{left} + {right} is {answer}, so the answer is $\\boxed{{{answer}}}$.", str(left + right)))
    return items


def _thoughts(count: int, size: int, answers: Answers | None = None) -> list[Item]:
    """Return reasoning of about `size` characters; half of the answers are wrong, a tenth have no box."""
    draw = random.Random(size)
    items = []
    for number in range(count):
        right, wrong = (answers or _answers)(draw)
        answer = right if number % 2 else wrong
        text = ""
        while len(text) < size:
            numbers = {name: draw.randrange(2, 99) for name in "abc"}
            text += draw.choice(_SENTENCES).format(**numbers) + ("\n\n" if draw.random() < 0.3 else " ")
        end = f"So it must be ${answer}$." if number % 10 == 0 else f"The final answer is $\\boxed{{{answer}}}$."
        items.append((text + end, right))
    return items


def _answers(draw: random.Random) -> tuple[str, str]:
    """Return a right and a wrong answer: 62 % integers, 18 % other numbers, 20 % expressions, as in MATH-500."""
    kind = draw.random()
    a, b, c = (draw.randrange(2, 99) for _ in range(3))
    if kind < 0.62:
        return str(a * b), str(a * b + c)
    if kind < 0.80:
        return f"\\frac{{{a}}}{{{b * 100 + 1}}}", f"\\frac{{{c}}}{{{b * 100 + 3}}}"
    return draw.choice(
        (
            (f"{a}\\sqrt{{{b}}}", f"\\sqrt{{{a * a * b + c}}}"),
            (f"\\frac{{{a}\\pi}}{{{b}}}", f"\\frac{{{c}\\pi}}{{{b}}}"),
            (f"\\left({a}, \\frac{{{b}}}{{101}}\\right)", f"({a}, {c})"),
            (f"{a}x^2 + {b}x - {c}", f"x({a}x + {b}) + {c}"),
            (f"(-\\infty, {a}) \\cup ({a + b}, \\infty)", f"(-\\infty, {a}]"),
            (f"{a} + {b}i", f"{a} - {b}i"),
        )
    )


def _transcendental(draw: random.Random) -> tuple[str, str]:
    """Return a right and a wrong answer with functions in them, so that exact arithmetic cannot tell."""
    a, b, c = (draw.randrange(2, 99) for _ in range(3))
    return draw.choice(
        (
            (f"{b} + \\cos({a}x)", f"{b} - \\cos({a}x)"),
            (f"\\ln({a * b})", f"\\ln({a * b + c})"),
            (f"{c}e^{{-{a}t}}\\sin({b}t)", f"{c}e^{{-{a}t}}\\cos({b}t)"),
            (f"\\frac{{x + {a}}}{{x^2 + {b}}}", f"\\frac{{x + {a}}}{{x^2 + {b + c}}}"),
            (f"{a}^{{n}} - {b}", f"{a}^{{n}} - {b + c}"),
        )
    )


@contextmanager
def _pinned_to(core: int) -> Iterator[None]:
    """Pin this process and its children to one core, since the bar is a rate per core."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)
