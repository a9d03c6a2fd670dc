"""Decontamination: find the training problems that an evaluation set holds too.

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
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from rloop_core.errors import ProblemsError
from rloop_core.problems.types import Problem, ProblemSet
from rloop_core.problems.wording import without_brackets, words

DECONTAMINATION_VERSION = 2
"""Must change when equal inputs may give other matches."""

_COMMON = 10
_SHARE_GRAM = 3
_PROBLEMS_PER_CALL = 1000  # of `on_progress`
_EXCERPT = 300
_SEARCHED = 1000

Kind = Literal["equal", "overlap", "near miss"]


@dataclass(frozen=True)
class Rules:
    """The rules by which a training problem counts as a copy of an evaluation problem.

    Attributes:
        ngram: Length in words of a run that both must have.
        containment: Least share of the evaluation problem's distinct 3-grams that the training problem must have.
    """

    ngram: int = 13
    containment: float = 0.6


@dataclass(frozen=True)
class Match:
    """A training problem and an evaluation problem that are equal or share an n-gram.

    Attributes:
        kind: `equal`, `overlap` (both conditions hold), or `near miss` (a shared n-gram but too small a share: kept).
        training_id, evaluation_id: Problem ids.
        evaluation_set: Label of the set.
        containment: Share of the evaluation problem's distinct 3-grams in the training problem; 1 when equal.
        shared_ngrams: Distinct n-grams in both.
        same_numbers: Both have the same numbers, equally often.
        phrase: The longest run of words in both, truncated.
        training, evaluation: The texts, truncated; from data sets, so not trusted.
    """

    kind: Kind
    training_id: str
    evaluation_set: str
    evaluation_id: str
    containment: float
    shared_ngrams: int
    same_numbers: bool
    phrase: str
    training: str
    evaluation: str

    @property
    def contaminated(self) -> bool:
        """True if the training problem counts as a copy of the evaluation problem."""
        return self.kind != "near miss"


@dataclass(frozen=True)
class Decontamination:
    """Result of a comparison.

    Attributes:
        training: Name of the training set.
        problems: Number of its problems.
        sets: Number of problems of each evaluation set, by label.
        rules: The rules that were applied.
        matches: In the order of the training problems: every contaminated pair, and for each problem that is kept the
            near miss with the largest share.
    """

    training: str
    problems: int
    sets: dict[str, int]
    rules: Rules
    matches: tuple[Match, ...]

    @property
    def contaminated(self) -> frozenset[str]:
        """Ids of the contaminated training problems."""
        return frozenset(match.training_id for match in self.matches if match.contaminated)

    def known(self, label: str) -> frozenset[str]:
        """Return the ids of an evaluation set's problems that have a copy in training."""
        matches = (match for match in self.matches if match.contaminated and match.evaluation_set == label)
        return frozenset(match.evaluation_id for match in matches)

    @property
    def near_misses(self) -> int:
        """Number of training problems that share an n-gram, but too little else, with an evaluation problem."""
        return sum(not match.contaminated for match in self.matches)

    def by_set(self) -> dict[str, dict[str, int]]:
        """Count contaminated training problems, evaluation problems with a copy, and all problems, for each set."""
        training = {label: set[str]() for label in self.sets}
        for match in self.matches:
            if match.contaminated:
                training[match.evaluation_set].add(match.training_id)
        return {
            label: {"training": len(training[label]), "evaluation": len(self.known(label)), "problems": size}
            for label, size in self.sets.items()
        }

    def sentence(self) -> str:
        """Summarise: "7 of 17,398 training problems contaminated by aime24 (2), math500 (5)"."""
        culprits = [f"{label} ({count:,})" for label, counts in self.by_set().items() if (count := counts["training"])]
        share = f"{len(self.contaminated) or 'none'} of {self.problems:,} training problems contaminated"
        return f"{share} by {', '.join(culprits or self.sets)}"

    def clean(self, training: ProblemSet) -> ProblemSet:
        """Return the training set without contaminated problems; its `ledger` counts them.

        Raises:
            ProblemsError: No problem is left.
        """
        dropped = self.contaminated
        kept = tuple(problem for problem in training if problem.id not in dropped)
        if not kept:
            fix = "train on other problems, or set decontaminate.mode to report"
            raise ProblemsError(f"all {len(training)} problems are evaluation problems", field=training.name, fix=fix)
        ledger = {**training.ledger, "contaminated_dropped": len(training) - len(kept), "kept": len(kept)}
        return replace(training, problems=kept, ledger=ledger)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, which `from_dict` reads."""
        return {**asdict(self), "matches": [asdict(match) for match in self.matches]}

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> Decontamination:
        """Read the values of `to_dict`.

        Raises:
            TypeError, KeyError: They are not such values.
        """
        matches = tuple(Match(**row) for row in content["matches"])
        return cls(**{**content, "rules": Rules(**content["rules"]), "matches": matches})


@dataclass(frozen=True)
class EvaluationSet:
    """A set that must have no copies in training.

    Attributes:
        label: Its name in the matches.
        problems: The problems.
        equal_only: Only equal problems count, because training and evaluation problems both come from generators.
    """

    label: str
    problems: ProblemSet
    equal_only: bool = False


def decontaminate(
    training: ProblemSet,
    evaluation: Sequence[EvaluationSet],
    rules: Rules = Rules(),
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Decontamination:
    """Compare a training set with evaluation sets, in one pass over the training problems.

    Args:
        training: The training set.
        evaluation: The evaluation sets.
        rules: The rules for copies.
        on_progress: Called with (training problems done, all training problems) after every 1,000 and at the end.
    """
    index = _Evaluation(evaluation, rules)
    matches: list[Match] = []
    for done, problem in enumerate(training, 1):
        matches += index.matches(problem)
        if done % _PROBLEMS_PER_CALL == 0 or done == len(training):
            on_progress(done, len(training))
    sizes = {problem_set.label: len(problem_set.problems) for problem_set in evaluation}
    return Decontamination(training.name, len(training), sizes, rules, tuple(matches))


class _Evaluation:
    """Index of the evaluation problems of all sets."""

    def __init__(self, sets: Sequence[EvaluationSet], rules: Rules) -> None:
        self._rules = rules
        self._problems = [(each.label, problem) for each in sets for problem in each.problems]
        whole = [words(problem.problem) for _, problem in self._problems]
        self._equal: dict[tuple[str, ...], list[int]] = {}
        for index, text in enumerate(whole):
            self._equal.setdefault(text, []).append(index)
        comparable = (not each.equal_only for each in sets for _ in each.problems)
        plain = [without_brackets(text) if use else () for text, use in zip(whole, comparable, strict=True)]
        self._index = _NgramIndex(plain, rules.ngram)

    def matches(self, problem: Problem) -> list[Match]:
        """Return the matches of one training problem."""
        text = words(problem.problem)
        plain = self._index.without_common(without_brackets(text))
        equal = self._equal.get(text, [])
        matches = [self._match("equal", problem, text, other) for other in equal]
        others = (other for other in self._index.sharing(plain) if other not in equal)
        matches += [match for other in others if (match := self._overlap(problem, plain, other))]
        contaminated = [match for match in matches if match.contaminated]
        return contaminated or sorted(matches, key=lambda match: -match.containment)[:1]

    def _overlap(self, problem: Problem, text: tuple[str, ...], other: int) -> Match | None:
        indexed = self._index.texts[other]
        if not _grams(indexed, self._rules.ngram) & _grams(text, self._rules.ngram):
            return None  # two hashes were equal by chance
        wanted = _grams(indexed, _SHARE_GRAM)
        share = len(wanted & _grams(text, _SHARE_GRAM)) / len(wanted)
        return self._match("overlap" if share >= self._rules.containment else "near miss", problem, text, other, share)

    def _match(self, kind: Kind, problem: Problem, text: tuple[str, ...], other: int, share: float = 1.0) -> Match:
        label, evaluation = self._problems[other]
        compared = text if kind == "equal" else self._index.texts[other]
        return Match(
            kind=kind,
            training_id=problem.id,
            evaluation_set=label,
            evaluation_id=evaluation.id,
            containment=round(share, 4),
            shared_ngrams=len(_grams(compared, self._rules.ngram) & _grams(text, self._rules.ngram)),
            same_numbers=_numbers(compared) == _numbers(text),
            phrase=" ".join(text if kind == "equal" else _longest_run(compared, text))[:_EXCERPT],
            training=_excerpt(problem.problem),
            evaluation=_excerpt(evaluation.problem),
        )


class _NgramIndex:
    """Hashes of the n-grams of some texts. Callers compare the words of a pair, since hashes may collide.

    Args:
        texts: Each a sequence of words.
        n: Words in an n-gram.

    Attributes:
        texts: The texts without common phrases: n-grams of at least `_COMMON` texts, which are boilerplate.
    """

    def __init__(self, texts: Iterable[tuple[str, ...]], n: int) -> None:
        self._n = n
        whole = list(texts)
        counts = Counter(gram for text in whole for gram in set(self._hashes(text)))
        self._common = {gram for gram, count in counts.items() if count >= _COMMON}
        self.texts = [self.without_common(text) for text in whole]
        self._owners: dict[int, list[int]] = {}
        for owner, text in enumerate(self.texts):
            for gram in set(self._hashes(text)):
                self._owners.setdefault(gram, []).append(owner)

    def without_common(self, text: tuple[str, ...]) -> tuple[str, ...]:
        """Return a text without the words of common phrases."""
        starts = [start for start, gram in enumerate(self._hashes(text)) if gram in self._common]
        covered = {index for start in starts for index in range(start, start + self._n)}
        return tuple(word for index, word in enumerate(text) if index not in covered) if covered else text

    def sharing(self, text: tuple[str, ...]) -> list[int]:
        """Return the indices of the indexed texts that share an n-gram with a text, in order."""
        return sorted({owner for gram in self._hashes(text) for owner in self._owners.get(gram, ())})

    def _hashes(self, text: tuple[str, ...]) -> Iterator[int]:
        return (hash(text[start : start + self._n]) for start in range(len(text) - self._n + 1))


def _grams(text: tuple[str, ...], n: int) -> set[tuple[str, ...]]:
    return {text[start : start + n] for start in range(len(text) - n + 1)}


def _numbers(text: tuple[str, ...]) -> Counter[str]:
    return Counter(word for word in text if word[0].isdigit() or word[0] == ".")


def _longest_run(a: tuple[str, ...], b: tuple[str, ...]) -> tuple[str, ...]:
    """Return the longest common run among the first words of both texts."""
    from difflib import SequenceMatcher

    run = SequenceMatcher(None, a[:_SEARCHED], b[:_SEARCHED], autojunk=False).find_longest_match()
    return a[run.a : run.a + run.size]


def _excerpt(text: str) -> str:
    line = " ".join(text.encode("utf-8", errors="replace").decode().split())
    return line if len(line) <= _EXCERPT else f"{line[: _EXCERPT - 3]}..."
