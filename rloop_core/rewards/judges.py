"""Judge completions by the reward of the set that their problem comes from.

`problems.reward` names it: `math`, the verifier; `exact`, `choice`, `program`, `reasoning_gym` or `verifiers`, see
`answers`, `programs` and `problems.environments`; or a function of one's own, `module:function` or `path.py:function`,
with one of the two signatures in `functions`. A whole reward is for example

    def reward(completions, gold, **columns):
        return [float(text.strip().endswith(answer)) for text, answer in zip(completions, gold)]

It is called with one completion at a time, so that no completion changes another's reward, in a worker process that is
killed when it takes too much time or memory. A crash, a hang, NaN or a wrong number of values is the verdict `error`
or `timeout` of that completion alone, and never a reward.
"""

import json
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from rloop_core.config import Config, ProblemSource
from rloop_core.config.evaluation import REWARDS
from rloop_core.hooks import hook_digest
from rloop_core.problems import Problem, ProblemSet
from rloop_core.problems.environments import environment_version
from rloop_core.verifier import VERIFIER_VERSION, Judgement, Verdict, Verifier
from rloop_core.verifier.limits import MAX_CHARS
from rloop_core.verifier.read.extract import extract
from rloop_core.verifier.workers.pool import Failed, WorkerPool

_SCORE = "rloop_core.rewards.functions:score"
_FILE_MB = 64
"""Size of a file that a reward function may write."""

Item = tuple[Problem, str, bool]
"""A problem, a completion to it, and whether that ended by itself."""


class Judges(AbstractContextManager["Judges"]):
    """Judges completions, each by the reward of its problem's set; a context manager that owns worker processes."""

    def __init__(self, config: Config) -> None:
        placement = config.placement
        limits = (placement.verifier_workers, placement.verifier_timeout_seconds, placement.verifier_memory_mb)
        self._verifier = Verifier(*limits, policies=config.verifier)
        self._pool = WorkerPool(_SCORE, *limits, file_mb=_FILE_MB)
        self._sources = {source.label: source for source in config.every_source}
        self._chat = {source.label: config.prompt_of(source).in_chat_format for source in config.every_source}

    def judge_many(self, items: Sequence[Item]) -> list[Judgement]:
        """Judge completions, in order. One that did not end by itself is `truncated`."""
        names = [self._name(problem) for problem, _, _ in items]
        for_verifier = [item for name, item in zip(names, items, strict=True) if name == "math"]
        for_functions = [item for name, item in zip(names, items, strict=True) if name != "math"]
        plain = [(completion, problem.gold, finished) for problem, completion, finished in for_verifier]
        by_verifier = iter(self._verifier.judge_many(plain))
        by_function = iter(self._by_function(for_functions))
        return [next(by_verifier if name == "math" else by_function) for name in names]

    def refused_golds(self, problems: ProblemSet) -> list[Problem]:
        """Return the problems that no completion could solve: their gold, as the answer, is not judged correct.

        A function of the user's need not read answers in boxes: its golds are refused where it fails.
        """
        asked = [problem for problem in problems if problem.gold or self._name(problem) != "reasoning_gym"]
        judgements = self.judge_many([(problem, f"\\boxed{{{problem.gold}}}", True) for problem in asked])
        pairs = zip(asked, judgements, strict=True)
        return [problem for problem, judgement in pairs if not self._is_fine(problem, judgement)]

    def close(self) -> None:
        """End the worker processes."""
        self._verifier.close()
        self._pool.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _name(self, problem: Problem) -> str:
        return self._sources[problem.source].reward_name

    def _is_fine(self, problem: Problem, judgement: Judgement) -> bool:
        if self._name(problem) in ("math", "exact", "choice", "reasoning_gym"):
            return judgement.verdict is Verdict.correct
        return judgement.verdict not in (Verdict.error, Verdict.timeout)

    def _by_function(self, items: Sequence[Item]) -> list[Judgement]:
        finished = [place for place, (_, _, is_finished) in enumerate(items) if is_finished]
        results = self._pool.map([self._call(*items[place][:2]) for place in finished])
        judgements = [Judgement(Verdict.truncated, *_answer(completion)) for _, completion, _ in items]
        for place, result in zip(finished, results, strict=True):
            source = self._sources[items[place][0].source]
            judgements[place] = _judged(result, source.reward_threshold, judgements[place])
        return judgements

    def _call(self, problem: Problem, completion: str) -> dict[str, Any]:
        source = self._sources[problem.source]
        return {
            "reward": REWARDS.get(source.reward_name, source.reward_name),
            "completion": completion,
            "problem": problem.problem,
            "gold": problem.gold,
            "columns": {**source.reward_arguments, **(json.loads(problem.columns) if problem.columns else {})},
            "chat": self._chat[problem.source],
        }


def rewards_identity(sources: Sequence[ProblemSource]) -> dict[str, Any]:
    """Return what of the rewards enters a fingerprint: nothing of the verifier's, whose version does anyway."""
    found = {}
    for source in sources:
        name = source.reward_name
        if name != "math":
            digest = f"built in, {VERIFIER_VERSION}" if name in REWARDS else hook_digest(name, "problems.reward")
            digest = environment_version(source.source.partition(":")[2]) if name == "verifiers" else digest
            found[source.label] = {"name": name, "source": digest, "threshold": source.reward_threshold}
    return {"rewards": found} if found else {}


def _answer(completion: str) -> tuple[str | None, int]:
    found = extract(completion)
    return found.answer and found.answer[:MAX_CHARS], found.boxes


def _judged(result: Any, threshold: float, before: Judgement) -> Judgement:
    """Return a judgement with the verdict and the score that follow from a reward function's result."""
    if isinstance(result, Failed):
        verdict = Verdict.timeout if result.timeout else Verdict.error
        return replace(before, verdict=verdict, reason=f"the reward {result.reason}")
    if result is None:
        return replace(before, verdict=Verdict.no_answer)
    return replace(before, verdict=Verdict.correct if result >= threshold else Verdict.wrong, score=result)
