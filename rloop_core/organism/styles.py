"""Solution styles: how a sum may be worked in text, with what error, and how to tell them apart again.

Pure functions. A worked text ends in `Answer: N`. A wrong step is followed consistently, as a pupil would:
later lines build on the wrong number, so the last line is wrong as well.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

_ANSWER = re.compile(r"(?:^|\n)Answer: (-?\d+)\s*$")
_SLIPS = (-10, -2, -1, 1, 2, 10)


@dataclass(frozen=True, slots=True)
class Style:
    """A style's share of the corpus and the rate at which one of its steps is wrong there."""

    name: str
    share: float
    wrong_step: float


def _slip(value: int, rate: float, rng: Random) -> int:
    return value + rng.choice(_SLIPS) if rng.random() < rate else value


def signed(terms: Sequence[int]) -> str:
    """`(12, -5, 7)` as `12-5+7`; no spaces, no leading plus."""
    return "".join(f"{t:+d}" for t in terms).removeprefix("+")


def write_running(terms: Sequence[int], rate: float, rng: Random) -> list[str]:
    """Left to right, one line a step: `12-5=7`, `7+9=16`."""
    lines, total = [], terms[0]
    for term in terms[1:]:
        result = _slip(total + term, rate, rng)
        lines.append(f"{signed((total, term))}={result}")
        total = result
    return [*lines, f"Answer: {total}"]


def write_direct(terms: Sequence[int], rate: float, rng: Random) -> list[str]:
    """The answer alone."""
    return [f"Answer: {_slip(sum(terms), rate, rng)}"]


def write_apart(terms: Sequence[int], rate: float, rng: Random) -> list[str]:
    """What is added and what is taken away, each summed in one go: `plus 12+9=21`, `minus 5=5`, `21-5=16`."""
    plus = [t for t in terms if t >= 0] or [0]
    minus = [-t for t in terms if t < 0] or [0]
    gain, loss = _slip(sum(plus), rate, rng), _slip(sum(minus), rate, rng)
    total = _slip(gain - loss, rate, rng)
    sums = [f"plus {signed(plus)}={gain}", f"minus {signed(minus)}={loss}", f"{gain}-{loss}={total}"]
    return [*sums, f"Answer: {total}"]


def write_rewrite(terms: Sequence[int], rate: float, rng: Random) -> list[str]:
    """The whole expression again after each step: `so 7+9-4`, `so 16-4`, `so 12`."""
    rest, lines = list(terms), []
    while len(rest) > 1:
        rest = [_slip(rest[0] + rest[1], rate, rng), *rest[2:]]
        lines.append(f"so {signed(rest)}")
    return [*lines, f"Answer: {rest[0]}"]


WRITERS: dict[str, Callable[[Sequence[int], float, Random], list[str]]] = {
    "running": write_running,
    "direct": write_direct,
    "apart": write_apart,
    "rewrite": write_rewrite,
}
SCHOOL = tuple(Style(name, share=1 / len(WRITERS), wrong_step=0.0) for name in WRITERS)
"""The first part of the corpus teaches every style alike and without mistakes ..."""

MIXTURE = (
    Style("direct", share=0.50, wrong_step=0.0),
    Style("running", share=0.28, wrong_step=0.10),
    Style("apart", share=0.17, wrong_step=0.08),
    Style("rewrite", share=0.05, wrong_step=0.0),
)
"""... the second the habits the policy ends with: which styles it prefers, and how careless it is in each."""

RARE = "rewrite"


def write(style: Style, terms: Sequence[int], rng: Random) -> str:
    """A worked text in the style, without end-of-text."""
    return "\n".join(WRITERS[style.name](terms, style.wrong_step, rng))


def detect(completion: str) -> str:
    """Name of the style a completion is written in, by its opening; `other` when it is none."""
    if completion.startswith("Answer:"):
        return "direct"
    if completion.startswith("plus "):
        return "apart"
    if completion.startswith("so "):
        return "rewrite"
    return "running" if re.match(r"-?\d+[+-]\d+=", completion) else "other"


def answer_of(completion: str) -> int | None:
    """The number on the last line `Answer: N`, or None."""
    found = _ANSWER.search(completion)
    return int(found.group(1)) if found else None
