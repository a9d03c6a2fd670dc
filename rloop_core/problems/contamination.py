"""Contamination: training problems that an evaluation set holds too, in the same or nearly the same words.

A training problem is contaminated by an evaluation problem when

1. both have the same words in the same order, numbers, operators and brackets included (`wording.words`), or
2. they share an n-gram of words (13, as in Brown et al. 2020, appendix C) and the training problem has at least 0.6 of
   the evaluation problem's distinct 3-grams.

An n-gram alone also matches phrases that many problems use; the share alone matches problems on one subject. Both
ignore wrappers and boilerplate: the known ones (`wording`), and phrases that ten evaluation problems have in common.
Numbers are words: a copy with other numbers counts when enough of the text between them is equal, and its match says
that the numbers differ. The share is relative to the evaluation problem: one inside a longer training problem counts,
and a training problem that is a small part of a long evaluation problem does not. The order of sentences has little
effect. Rule 1 alone applies to evaluation problems of fewer than n words, to two problems of generators (whose problems
differ in their numbers only), and to sets with ten variants of each problem, whose text is their common phrase.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from rloop_core.problems.types import Problem, ProblemSet
from rloop_core.problems.wording import without_brackets, words

NGRAM = 13
CONTAINMENT = 0.6
_COMMON = 10
_PROBLEMS_PER_CALL = 1000  # of `on_progress`

Gram = tuple[str, ...]
Kind = Literal["equal", "overlap", "near miss"]


class EvaluationSet(NamedTuple):
    """A set that must have no copies in training; `equal_only` if its and the training problems are generated."""

    label: str
    problems: ProblemSet
    equal_only: bool = False


@dataclass(frozen=True)
class Match:
    """A training problem and an evaluation problem that are equal or share an n-gram."""

    kind: Kind
    """`overlap`: both conditions of rule 2 hold; `near miss`: a shared n-gram but too small a share."""
    training_id: str
    evaluation_set: str
    """Label of the set."""
    evaluation_id: str
    containment: float
    """Share of the evaluation problem's distinct 3-grams in the training problem; 1 when equal."""
    same_numbers: bool
    """Both have the same numbers, equally often."""
    training: str
    evaluation: str
    """The texts; from data sets, so not trusted."""

    @property
    def contaminated(self) -> bool:
        """True if the training problem counts as a copy of the evaluation problem."""
        return self.kind != "near miss"


def find_matches(
    training: ProblemSet,
    evaluation: Sequence[EvaluationSet],
    on_progress: Callable[[int, int], None] = lambda done, total: None,
    *,
    ngram: int = NGRAM,
    containment: float = CONTAINMENT,
) -> list[Match]:
    """Compare a training set with evaluation sets.

    Args:
        training: The training set.
        evaluation: The evaluation sets.
        on_progress: Called with (training problems done, all training problems) after every 1,000 and at the end.
        ngram: Length in words of a run that both problems must have.
        containment: Least share of the evaluation problem's distinct 3-grams that the training problem must have.

    Returns:
        In the order of the training problems: every contaminated pair, and for each other problem the near miss with
        the largest share.
    """
    index = _Index(evaluation, ngram, containment)
    matches: list[Match] = []
    for done, problem in enumerate(training, 1):
        found = list(index.matches(problem))
        contaminated = [match for match in found if match.contaminated]
        matches += contaminated or sorted(found, key=lambda match: -match.containment)[:1]
        if done % _PROBLEMS_PER_CALL == 0 or done == len(training):
            on_progress(done, len(training))
    return matches


class _Index:
    """The evaluation problems of all sets, by their words and by the n-grams that they share with few others."""

    def __init__(self, evaluation: Sequence[EvaluationSet], ngram: int, containment: float) -> None:
        self._ngram, self._containment = ngram, containment
        self._problems = [(each.label, problem) for each in evaluation for problem in each.problems]
        self._equal: dict[Gram, list[int]] = {}
        whole: list[Gram] = []
        for each in evaluation:
            for problem in each.problems:
                text = words(problem.problem)
                self._equal.setdefault(text, []).append(len(whole))
                whole.append(() if each.equal_only else without_brackets(text))
        counts = Counter(gram for text in whole for gram in _grams(text, ngram))
        self._common = {gram for gram, count in counts.items() if count >= _COMMON}
        self._texts = [self._without_common(text) for text in whole]
        self._owners: dict[Gram, list[int]] = {}
        for owner, text in enumerate(self._texts):
            for gram in _grams(text, ngram):
                self._owners.setdefault(gram, []).append(owner)

    def matches(self, problem: Problem) -> Iterator[Match]:
        """Yield the matches of one training problem."""
        text = words(problem.problem)
        plain = self._without_common(without_brackets(text))
        equal = self._equal.get(text, [])
        for other in equal:
            yield _match("equal", problem, *self._problems[other], 1.0, True)
        sharing = {owner for gram in _grams(plain, self._ngram) for owner in self._owners.get(gram, ())}
        triples = _grams(plain, 3)
        for other in sorted(sharing.difference(equal)):
            wanted = _grams(self._texts[other], 3)
            share = len(wanted & triples) / len(wanted)
            same_numbers = _numbers(plain) == _numbers(self._texts[other])
            kind: Kind = "overlap" if share >= self._containment else "near miss"
            yield _match(kind, problem, *self._problems[other], share, same_numbers)

    def _without_common(self, text: Gram) -> Gram:
        """Return a text without the words of common phrases, which are boilerplate."""
        starts = [start for start in _starts(text, self._ngram) if text[start : start + self._ngram] in self._common]
        covered = {index for start in starts for index in range(start, start + self._ngram)}
        return tuple(word for index, word in enumerate(text) if index not in covered)


def _match(kind: Kind, problem: Problem, label: str, evaluation: Problem, share: float, same_numbers: bool) -> Match:
    texts = problem.problem, evaluation.problem
    return Match(kind, problem.id, label, evaluation.id, round(share, 4), same_numbers, *texts)


def _starts(text: Gram, n: int) -> range:
    return range(len(text) - n + 1)


def _grams(text: Gram, n: int) -> set[Gram]:
    return {text[start : start + n] for start in _starts(text, n)}


def _numbers(text: Gram) -> Counter[str]:
    return Counter(word for word in text if word[0].isdigit() or word[0] == ".")
