"""The problem sets known by name: where they are on the Hugging Face hub and which columns they use."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from rloop_core.problems.rows import GOLD_COLUMNS, PROBLEM_COLUMNS

PROCEDURAL_PREFIX = "reasoning_gym:"


@dataclass(frozen=True, slots=True)
class HubSource:
    """A data set on the hub.

    Attributes:
        hub_id: `owner/name`.
        split: The split used unless the config names another.
        revision: The revision used unless the config names another; None is the newest.
        config: Hub configuration (subset), None for the default one.
        problem_columns, gold_columns: Columns tried in order.
    """

    hub_id: str
    split: str
    revision: str | None = None
    config: str | None = None
    problem_columns: tuple[str, ...] = PROBLEM_COLUMNS
    gold_columns: tuple[str, ...] = GOLD_COLUMNS


REGISTRY: dict[str, HubSource] = {
    "aime24": HubSource("HuggingFaceH4/aime_2024", "train", gold_columns=("answer",)),
    "minerva_math": HubSource("math-ai/minervamath", "test", gold_columns=("solution", "answer")),
    # 500 of Omni-MATH; the paper does not name its subset.
    "omni_math": HubSource("reliable-agents/Omni-MATH-500", "test", gold_columns=("answer", "solution")),
    "math500": HubSource("HuggingFaceH4/MATH-500", "test", gold_columns=("answer",)),
    # The original repository holds about a hundred copies of each problem; this one is deduplicated. Its `solution`
    # column is the bare answer.
    "dapo17k": HubSource(
        "open-r1/DAPO-Math-17k-Processed",
        "train",
        config="all",
        problem_columns=("prompt",),
        gold_columns=("reward_model.ground_truth",),
    ),
    "gsm8k": HubSource("openai/gsm8k", "test", config="main", problem_columns=("question",), gold_columns=("answer",)),
}


def closest(word: str, words: list[str]) -> str:
    """ "did you mean ...?" for a mistyped name, else the list of names."""
    near = difflib.get_close_matches(word, words, n=1, cutoff=0.5)
    return f"did you mean {near[0]}?" if near else f"use one of {', '.join(words)}"
