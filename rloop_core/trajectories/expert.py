"""What the filter is told and what it reports: settings, ledger, report."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, Literal

from rloop_core.errors import ConfigError

# The ledger's steps, in the order in which trajectories fall.
LEDGER_STEPS: tuple[str, ...] = (
    "recorded",
    "correct",
    "of hard problems",
    "attempts and successes floor",
    "finished",
    "single box",
    "deduplicated",
    "capped per problem",
)


@dataclass(frozen=True, slots=True)
class FilterSettings:
    """How the expert set is chosen (paper sections 4.2 and 5.1).

    Attributes:
        threshold: A problem is hard when 0 < success rate < threshold. Exactly 1.0 takes every problem with
            at least one success, those always solved too (the ablation without active learning).
        min_attempts: Problems with fewer recorded rollouts are left out.
        min_successes: Problems with fewer correct rollouts are left out: at 190 attempts a verifier with one
            false positive in a thousand gives 17 % of the unsolvable problems a "success".
        max_per_problem: Cap of trajectories a problem; None takes all.
        drop_truncated: Leave out rollouts that did not end by themselves.
        drop_multiple_boxes: Leave out rollouts that box several answers.
        on_empty: An empty expert set is carried (theta_i goes on unchanged), retried with wider thresholds,
            or an error.
        widen_to: The thresholds tried in order when ``on_empty`` is "widen".
        source: "all", or "snapshots" for what harvest sampled from snapshots alone; rates and ledger count the same.
        seed: Chooses which trajectories survive the cap.
    """

    threshold: float = 0.10
    min_attempts: int = 1
    min_successes: int = 1
    max_per_problem: int | None = 8
    drop_truncated: bool = True
    drop_multiple_boxes: bool = True
    on_empty: Literal["carry", "widen", "fail"] = "carry"
    widen_to: tuple[float, ...] = (0.2, 0.5)
    source: Literal["all", "snapshots"] = "all"
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0.0 < self.threshold <= 1.0:
            raise ConfigError(
                f"{self.threshold} is outside (0, 1]",
                field="filter.threshold",
                fix="the paper uses 0.10; 1.0 takes every solved problem",
            )
        if self.on_empty not in ("carry", "widen", "fail"):
            raise ConfigError(
                f"{self.on_empty!r} is not a policy",
                field="filter.on_empty",
                fix="choose carry, widen or fail",
            )
        for name in ("min_attempts", "min_successes", "max_per_problem"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{value} is below 1", field=f"filter.{name}", fix="give 1 or more")
        steps = (self.threshold, *self.widen_to)
        rising = len(steps) > 1 and steps[-1] <= 1.0 and all(low < high for low, high in pairwise(steps))
        if self.on_empty == "widen" and not rising:
            raise ConfigError(
                f"{self.widen_to} does not widen {self.threshold} step by step up to 1",
                field="filter.widen_to",
                fix="list rising thresholds such as [0.2, 0.5, 1.0]",
            )

    def thresholds(self) -> tuple[float, ...]:
        """The thresholds to try, in order."""
        return (self.threshold, *(self.widen_to if self.on_empty == "widen" else ()))


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """What is left after one step of the filter."""

    step: str
    trajectories: int
    problems: int


@dataclass(frozen=True, slots=True)
class FilterReport:
    """What the filter did.

    Attributes:
        status: "filtered", "widened" (by a wider threshold than asked for) or "carried" (empty, by policy).
        threshold: The threshold in force at the end.
        thresholds_tried: All of them, in order.
        ledger: One row for each of ``LEDGER_STEPS``.
        hard_problems: Problems with a rate in the band, before any floor.
        single_success_share: Share of the hard problems solved exactly once, where false positives gather;
            None without hard problems.
        rate_histogram: Problems by success rate, all of them, ten bins of 0.1 over [0, 1]; the last includes
            1.
        hard_histogram: Hard problems by success rate, ten equal bins over [0, threshold].
        unsolved, always_solved: Problems never solved, and solved in every attempt.
    """

    status: Literal["filtered", "widened", "carried"]
    threshold: float
    thresholds_tried: tuple[float, ...]
    ledger: tuple[LedgerRow, ...]
    hard_problems: int
    single_success_share: float | None
    rate_histogram: tuple[int, ...]
    hard_histogram: tuple[int, ...]
    unsolved: int
    always_solved: int

    @property
    def trajectories(self) -> int:
        """Size of the expert set."""
        return self.ledger[-1].trajectories

    @property
    def problems(self) -> int:
        """Problems of the expert set."""
        return self.ledger[-1].problems

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, for a manifest's metrics."""
        return {**asdict(self), "trajectories": self.trajectories, "problems": self.problems}
