"""Problem order and dynamic sampling (DAPO, section 3.2): which groups enter the update."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class ProblemStream:
    """Endless passes over `count` problems, each pass in its own order: a function of the seed and the cursor alone.

    So a phase resumes from the cursor, the number of problems taken so far, in any pass, and dynamic sampling may draw
    any number of problems per RL step.
    """

    def __init__(self, count: int, seed: int, cursor: int = 0) -> None:
        self._count = count
        self._seed = seed
        self.cursor = cursor
        self._pass = -1
        self._order: np.ndarray = np.empty(0, dtype=np.int64)

    def take(self, number: int) -> list[int]:
        """Return the next `number` problem indices, and advance the cursor."""
        indices = [self._at(self.cursor + offset) for offset in range(number)]
        self.cursor += number
        return indices

    def _at(self, position: int) -> int:
        which, index = divmod(position, self._count)
        if which != self._pass:
            self._pass = which
            self._order = np.random.default_rng([self._seed, which]).permutation(self._count)
        return int(self._order[index])


def group_id(step: int, rank: int, round_index: int, group: int) -> str:
    """Return a group's name, unique within one exploration phase."""
    return f"s{step:06d}-r{rank:02d}-b{round_index:02d}-g{group:04d}"


def informative_groups(scores: Sequence[float], group_size: int) -> list[int]:
    """Return the indices of the groups whose rollouts differ in their scores: right and wrong ones, with the verifier.

    R(tau) decides, not the shaped reward: an overlong punishment must not make a solved problem look informative.
    `scores` has R of each rollout, group after group: shape (groups * group_size,).
    """
    groups = [scores[start : start + group_size] for start in range(0, len(scores), group_size)]
    return [index for index, group in enumerate(groups) if min(group) < max(group)]


def problems_needed(wanted: int, found: int, drawn: int, ranks: int) -> int:
    """Return how many problems the next round of sampling draws: a multiple of `ranks`, at most `wanted`, as is that.

    At the share of informative groups so far, `found` of `drawn`, it finds those that are missing with two standard
    deviations to spare: a round lasts as long as its longest rollout, so one more costs more than a few problems.
    """
    missing = wanted - found
    needed = (missing + 2 * math.sqrt(missing)) * drawn / found if found else wanted
    return min(wanted, math.ceil(needed / ranks) * ranks)


class Rollout(NamedTuple):
    """What the update needs of a rollout, in arrays, because all ranks exchange theirs."""

    prompt_ids: np.ndarray
    completion_ids: np.ndarray
    rewards: tuple[float, ...]
    """Of each reward function."""
    log_probs: np.ndarray | None
    """Of each token, as vLLM sampled it; NaN where it did not say."""

    @property
    def tokens(self) -> int:
        """Tokens of prompt and completion."""
        return len(self.prompt_ids) + len(self.completion_ids)


class Group(NamedTuple):
    """An informative group. Groups sort by the round and then the rank that sampled them."""

    round_index: int
    rank: int
    name: str
    rollouts: list[Rollout]
