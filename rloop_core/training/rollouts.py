"""An RL step's rollouts: DAPO's score of each answer, and the record of all of them on disk."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rloop_core.trajectories.shards import write_shard
from rloop_core.verifier import Judgement, Verdict, Verifier


class AnswerReward:
    """TRL reward function: `correct` or `wrong` according to the verifier's verdict (DAPO, equation 7).

    The judgements of the last call stay readable, for the record and for dynamic sampling.
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
        prompts: list[str],
        completions: list[str],
        completion_ids: list[list[int]],
        gold: list[str],
        **columns: Any,
    ) -> list[float]:
        """Return one score per rollout, in order."""
        self.completions = completions
        started = time.perf_counter()
        finished = [self.is_finished(ids) for ids in completion_ids]
        self.judgements = self._verifier.judge_many(list(zip(self.completions, gold, finished, strict=True)))
        self._seconds += time.perf_counter() - started
        return [self._scores[judgement.verdict == Verdict.correct] for judgement in self.judgements]

    def take_seconds(self) -> float:
        """Return the seconds spent judging since the last call."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    def is_finished(self, completion_ids: Sequence[int]) -> bool:
        """Return True if a completion ends with an eos token."""
        return bool(completion_ids) and completion_ids[-1] in self._eos


class RolloutRecorder:
    """Writes one shard to `directory` per RL step and rank; `attempt` counts earlier starts, and the last one wins."""

    def __init__(self, directory: Path, run: str, iteration: int, rank: int, attempt: int) -> None:
        self._directory = directory
        self._fixed = {"run": run, "iteration": iteration, "rank": rank, "attempt": attempt}
        self._rank, self._attempt = rank, attempt

    def write(self, step: int, rows: list[dict[str, Any]]) -> Path:
        """Record all rollouts of one RL step, whether or not the update uses them, in one atomic write."""
        whole = [{**self._fixed, "step": step, **row} for row in rows]
        return write_shard(self._directory, step, self._rank, self._attempt, whole)
