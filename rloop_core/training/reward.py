"""What a rollout is worth in exploration: DAPO's score of the answer, kept apart from its soft overlong punishment."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from rloop_core.verifier import Judgement, Verdict, Verifier


class AnswerReward:
    """TRL reward callable: `correct` or `wrong` score by the verifier's verdict (DAPO, equation 7).

    The judgements of the last call stay readable, for the record and for dynamic sampling.

    Args:
        verifier: Judges completions.
        correct: Score of a verdict `correct`.
        wrong: Score of every other verdict.
        eos_token_ids: Tokens that end a completion by itself.
    """

    __name__ = "answer"

    def __init__(self, verifier: Verifier, correct: float, wrong: float, eos_token_ids: Sequence[int]) -> None:
        self._verifier = verifier
        self._scores = {True: correct, False: wrong}
        self._eos = frozenset(eos_token_ids)
        self.judgements: list[Judgement] = []
        self.completions: list[str] = []
        self._seconds = 0.0

    def __call__(
        self,
        prompts: list[Any],
        completions: list[Any],
        completion_ids: list[list[int]],
        gold: list[str],
        **columns: Any,
    ) -> list[float]:
        """Scores, one a rollout, in order."""
        self.completions = [completion_text(completion) for completion in completions]
        started = time.perf_counter()
        finished = [self.is_finished(ids) for ids in completion_ids]
        self.judgements = self._verifier.judge_many(list(zip(self.completions, gold, finished, strict=True)))
        self._seconds += time.perf_counter() - started
        return [self._scores[judgement.verdict == Verdict.correct] for judgement in self.judgements]

    def take_seconds(self) -> float:
        """Seconds spent judging since the last call."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    def is_finished(self, completion_ids: Sequence[int]) -> bool:
        """Whether a completion ended by itself, within its token budget."""
        return bool(completion_ids) and completion_ids[-1] in self._eos


def completion_text(completion: Any) -> str:
    """The text of a completion, whether plain or a list of chat messages."""
    if isinstance(completion, str):
        return completion
    return "".join(str(message.get("content", "")) for message in completion)
