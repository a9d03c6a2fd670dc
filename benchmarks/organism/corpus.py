"""The pretraining corpus: fresh sums, each worked once in a style drawn from the mixture."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from random import Random
from typing import TYPE_CHECKING, Any

from benchmarks.organism.styles import SCHOOL, Style, write
from benchmarks.organism.sums import draw

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Lesson = tuple[int, Sequence[Style]]
"""Number of solutions, and the mixture their styles are drawn from."""

CORPUS_SEED = 10_000_000
SUMS_PER_SEED = 1_000_000
OTHER_FAMILIES = ("basic_arithmetic", "products", "gcd", "lcm", "leg_counting", "fraction_simplification")


@dataclass(frozen=True, slots=True)
class Worked:
    """A prompt (template `plain`: question and newline) and its worked solution."""

    prompt: str
    solution: str
    style: str


def first_seed(seed: int) -> int:
    """Return reasoning-gym's seed for a corpus; corpora of different seeds share no problem seed."""
    return CORPUS_SEED + seed * SUMS_PER_SEED


def worked_sums(
    seed: int, shape: dict[str, Any], lessons: Sequence[Lesson], exclude: Collection[str]
) -> Iterator[Worked]:
    """Yield the lessons' solutions in order, to new problems of the shape whose questions are not in `exclude`."""
    rng = Random(seed)
    fresh = (problem for problem in draw(first_seed(seed), SUMS_PER_SEED, shape) if problem.question not in exclude)
    for count, mixture in lessons:
        weights = [s.share for s in mixture]
        for problem in islice(fresh, count):
            style = rng.choices(mixture, weights)[0]
            yield Worked(f"{problem.question}\n", write(style, problem.terms, rng), style.name)


def tokenizer_texts(seed: int, shape: dict[str, Any], exclude: Collection[str]) -> list[str]:
    """Return the tokenizer's training texts: worked sums, and questions of other arithmetic families."""
    import reasoning_gym

    texts = [w.prompt + w.solution for w in worked_sums(seed, shape, [(2_000, SCHOOL)], exclude)]
    for family in OTHER_FAMILIES:
        texts += [str(row["question"]) for row in reasoning_gym.create_dataset(family, seed=seed, size=50)]
    return texts


def encode(
    items: Sequence[Worked], tokenizer: PreTrainedTokenizerBase, chunk: int = 2_000
) -> list[tuple[list[int], list[int]]]:
    """Return (prompt ids, solution ids with end-of-text) of each item, encoded apart, as in generation.

    Works in chunks: a tokenizer returns offsets and masks too, a gigabyte for the whole corpus.
    """
    pairs: list[tuple[list[int], list[int]]] = []
    for start in range(0, len(items), chunk):
        part = items[start : start + chunk]
        prompts = tokenizer([w.prompt for w in part])["input_ids"]
        solutions = tokenizer([w.solution for w in part])["input_ids"]
        pairs += [(p, [*s, tokenizer.eos_token_id]) for p, s in zip(prompts, solutions, strict=True)]
    return pairs
