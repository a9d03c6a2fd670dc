"""The order in which exploration meets problems: a pure function of the seed and a cursor."""

from __future__ import annotations

import numpy as np


class ProblemStream:
    """Endless passes over `count` problems, each pass in an order of its own.

    A resume needs the cursor alone, in whatever pass it stands; dynamic sampling, which draws an unknown number of
    problems an RL step, needs no look-ahead.

    Args:
        count: Number of problems.
        seed: Seed of the orders.
        cursor: Problems drawn so far.
    """

    def __init__(self, count: int, seed: int, cursor: int = 0) -> None:
        if count < 1:
            raise ValueError("a stream needs at least one problem")
        self._count = count
        self._seed = seed
        self.cursor = cursor
        self._pass = -1
        self._order: np.ndarray = np.empty(0, dtype=np.int64)

    def take(self, number: int) -> list[int]:
        """The next `number` problem indices; advances the cursor."""
        indices = [self._at(self.cursor + offset) for offset in range(number)]
        self.cursor += number
        return indices

    def _at(self, position: int) -> int:
        which, place = divmod(position, self._count)
        if which != self._pass:
            self._pass = which
            self._order = np.random.default_rng([self._seed, which]).permutation(self._count)
        return int(self._order[place])
