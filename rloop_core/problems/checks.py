"""Checks before anything expensive: golds that verify against themselves, prompts that fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rloop_core.errors import ProblemsError
from rloop_core.problems.templates import render
from rloop_core.problems.types import Problem, ProblemSet
from rloop_core.verifier.types import Verdict
from rloop_core.verifier.verifier import Verifier

_BATCH = 512


def self_check(problem_set: ProblemSet, verifier: Verifier) -> list[Problem]:
    """The problems whose boxed gold is not judged correct against itself: no policy could ever solve them."""
    problems: Sequence[Problem] = problem_set.problems
    judged = verifier.judge_many([(f"\\boxed{{{problem.gold}}}", problem.gold, True) for problem in problems])
    return [problem for problem, one in zip(problems, judged, strict=True) if one.verdict is not Verdict.correct]


def check_lengths(problem_set: ProblemSet, template: str, tokenizer: Any, max_prompt_tokens: int) -> int:
    """The longest prompt of the set in tokens.

    Prompts in a chat format already carry their special tokens, so the tokenizer adds none to them.

    Raises:
        ProblemsError: A prompt is longer than max_prompt_tokens; names the first, how many, and the longest.
    """
    longest, too_long = 0, 0
    first: tuple[Problem, int] | None = None
    for start in range(0, len(problem_set), _BATCH):
        batch = problem_set.problems[start : start + _BATCH]
        prompts = [render(problem.problem, template, tokenizer) for problem in batch]
        ids = tokenizer(prompts, add_special_tokens=template != "chat")["input_ids"]
        for problem, tokens in zip(batch, ids, strict=True):
            longest = max(longest, len(tokens))
            if len(tokens) > max_prompt_tokens:
                too_long += 1
                first = first or (problem, len(tokens))
    if first:
        problem, length = first
        start_of_text = " ".join(problem.problem.split())[:60]
        raise ProblemsError(
            f"{too_long} of {len(problem_set)} prompts are longer than {max_prompt_tokens} tokens; the first is "
            f'problem {problem.id} with {length} ("{start_of_text}...")',
            field="max_prompt_tokens",
            fix=f"raise max_prompt_tokens to {longest}, or remove these problems",
        )
    return longest
