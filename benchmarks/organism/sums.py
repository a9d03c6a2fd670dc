"""The problems of the bundled policies: disjoint sets of reasoning-gym's `chain_sum`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

TASK = "chain_sum"
_TERM = re.compile(r"([+-]?)\s*(\d+)\s*")
_EXPRESSION = re.compile(r"^\d+(?: [+-] \d+)*$")
_HEAD, _TAIL = "State the final answer to the following arithmetic problem: ", " ="


@dataclass(frozen=True, slots=True)
class Sum:
    """One problem: reasoning-gym's question text, its signed terms, and their sum."""

    question: str
    terms: tuple[int, ...]

    @property
    def gold(self) -> int:
        """The right answer."""
        return sum(self.terms)


@dataclass(frozen=True)
class SumSet:
    """How a set of problems is drawn: the parameters of `reasoning_gym:chain_sum`."""

    name: str
    seed: int
    size: int
    params: dict[str, Any] = field(default_factory=dict)

    def as_source(self) -> dict[str, Any]:
        """Return the fields of a `problems` section of a run config."""
        return {"source": f"reasoning_gym:{TASK}", "size": self.size, "seed": self.seed, "params": self.params}

    def problems(self) -> tuple[Sum, ...]:
        """Return the problems in reasoning-gym's order."""
        return tuple(draw(self.seed, self.size, self.params))


def parse_terms(question: str) -> tuple[int, ...]:
    """Return the signed terms of a chain_sum question (without negated numbers).

    Raises:
        ValueError: The text is not such a question.
    """
    expression = question.removeprefix(_HEAD).removesuffix(_TAIL)
    if not _EXPRESSION.match(expression):
        raise ValueError(f"not a {TASK} question: {question!r}")
    return tuple(-int(n) if sign == "-" else int(n) for sign, n in _TERM.findall(expression))


def draw(seed: int, size: int, params: dict[str, Any]) -> Iterator[Sum]:
    """Yield problems from reasoning-gym. It seeds problem i by `seed + i`: keep seeds further apart than sizes."""
    import reasoning_gym

    for row in reasoning_gym.create_dataset(TASK, seed=seed, size=size, **params):
        question = str(row["question"])
        yield Sum(question, parse_terms(question))


SHAPE = {"min_terms": 4, "max_terms": 6, "min_digits": 1, "max_digits": 1}
HARDER_SHAPE = {"min_terms": 7, "max_terms": 8, "min_digits": 1, "max_digits": 1}
TRAIN = SumSet("train", seed=1_000, size=512, params=SHAPE)
HELD_OUT = SumSet("held_out", seed=2_000, size=100, params=SHAPE)
HARDER = SumSet("harder", seed=3_000, size=60, params=HARDER_SHAPE)
RL_SETS = (TRAIN, HELD_OUT, HARDER)

STUDY_SHAPE = {"min_terms": 3, "max_terms": 5, "min_digits": 1, "max_digits": 1}
STUDY_HARDER_SHAPE = {"min_terms": 6, "max_terms": 7, "min_digits": 1, "max_digits": 1}
STUDY_SETS = (
    *(SumSet(f"train-{seed}", seed=1_000 * seed, size=192, params=STUDY_SHAPE) for seed in range(1, 11)),
    SumSet("held_out", seed=20_000, size=100, params=STUDY_SHAPE),
    SumSet("harder", seed=30_000, size=60, params=STUDY_HARDER_SHAPE),
)
"""The study trains each seed on its own problems, and measures all on the same."""


def texts(sets: Sequence[SumSet]) -> frozenset[str]:
    """Return every question of the sets, for the pretraining corpus to leave out."""
    return frozenset(p.question for s in sets for p in s.problems())
