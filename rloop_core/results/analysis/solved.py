"""When a policy counts as able to solve a problem.

The paper (section 3.1) says "can solve" and samples 32 solutions a problem; it does not say how many of them must be
right. `any` fits its pass@32. The choice moves every rate, so a matrix always says which one it used.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rloop_core.errors import ConfigError
from rloop_core.evaluation.metrics import Counts, checked_counts

Bools = npt.NDArray[np.bool_]
_RULE = re.compile(r"any|majority|at-least-([1-9]\d*)")


@dataclass(frozen=True, slots=True)
class SolvedRule:
    """`any` (at least one sample is correct), `at-least-M`, or `majority` (more than half are).

    Raises:
        ConfigError: Another name.
    """

    name: str = "any"

    def __post_init__(self) -> None:
        if not _RULE.fullmatch(self.name):
            raise ConfigError(
                f"unknown rule {self.name!r}", field="solved", fix="use any, majority or at-least-M, such as at-least-3"
            )

    def needed(self, samples: npt.ArrayLike) -> Counts:
        """Correct samples that a problem needs, of so many; the shape of `samples`."""
        total = np.asarray(samples, dtype=np.int64)
        if self.name == "majority":
            return total // 2 + 1
        match = _RULE.fullmatch(self.name)
        return np.full(total.shape, int(match.group(1)) if match and match.group(1) else 1, dtype=np.int64)

    def __call__(self, n: npt.ArrayLike, c: npt.ArrayLike) -> Bools:
        """Whether problems with c correct of n samples are solved; n and c are broadcast.

        Raises:
            StageError: Impossible counts.
        """
        total, correct = checked_counts(n, c)
        return np.asarray(correct >= self.needed(total))
