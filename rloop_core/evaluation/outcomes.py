"""Per-problem outcomes of an evaluation, their summary with intervals, and the paired comparison of two
policies."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rloop_core.errors import StageError
from rloop_core.evaluation.bootstrap import intervals
from rloop_core.evaluation.bounds import check_summary
from rloop_core.evaluation.majority import majority_at_k
from rloop_core.evaluation.metrics import Counts, Floats, avg_at_k, checked_counts, pass_at_k, sampling_sd
from rloop_core.evaluation.votes import Votes, wrong_votes_in
from rloop_core.trajectories.schema import check_schema
from rloop_core.trajectories.success import CORRECT

_COLUMNS = ["problem_id", "answer", "verdict", "finished", "length"]


@dataclass(frozen=True, slots=True, eq=False)
class Outcomes:
    """What a policy achieved, a problem at a time.

    Attributes:
        problem_ids: Sorted, each once.
        n: Samples of each problem, shape [problems].
        c: Correct samples of each problem, shape [problems].
        truncated: Samples of each problem that did not end within the budget, shape [problems].
        tokens: Completion tokens over the samples of each problem, shape [problems].
        wrong: Of each problem the samples of each distinct wrong answer; None where only the counts are known, and
            then there is no majority@k.
    """

    problem_ids: tuple[str, ...]
    n: Counts
    c: Counts
    truncated: Counts
    tokens: Counts
    wrong: tuple[Votes, ...] | None = None

    def __len__(self) -> int:
        return len(self.problem_ids)

    @property
    def avg_name(self) -> str:
        """ "avg@32", or "avg@8-32" when problems have unequal numbers of samples."""
        return f"avg@{self._numbers}"

    @property
    def majority_name(self) -> str:
        """ "majority@32": of all samples of each problem; "majority@8-32" when they are unequal in number."""
        return f"majority@{self._numbers}"

    @property
    def _numbers(self) -> str:
        low, high = int(self.n.min()), int(self.n.max())
        return str(low) if low == high else f"{low}-{high}"

    def majority(self, k: int | None = None) -> Floats:
        """majority@k of each problem, of all its samples where k is None; shape [problems] in [0, 1].

        Raises:
            StageError: Only the counts are known.
            ConfigError: k above the samples of some problem.
        """
        if self.wrong is None:
            raise StageError("the answers are not known", field="majority", fix="score the samples, not their counts")
        rows = enumerate(zip(self.n.tolist(), self.c.tolist(), self.wrong, strict=True))
        # A seed for each problem: with one for all, their errors would not cancel out in the mean.
        return np.array([majority_at_k(c, wrong, n - c - sum(wrong), k or n, seed) for seed, (n, c, wrong) in rows])

    def without(self, problem_ids: Collection[str]) -> Outcomes:
        """The outcomes on all other problems.

        Raises:
            StageError: There are none.
        """
        kept = np.array([one not in problem_ids for one in self.problem_ids], dtype=bool)
        ids = [one for one in self.problem_ids if one not in problem_ids]
        wrong = None if self.wrong is None else dict(zip(self.problem_ids, self.wrong, strict=True))
        return Outcomes.from_counts(ids, self.n[kept], self.c[kept], self.truncated[kept], self.tokens[kept], wrong)

    @classmethod
    def from_counts(
        cls,
        problem_ids: Sequence[str],
        n: npt.ArrayLike,
        c: npt.ArrayLike,
        truncated: npt.ArrayLike = 0,
        tokens: npt.ArrayLike = 0,
        wrong: Mapping[str, Votes] | None = None,
    ) -> Outcomes:
        """Outcomes from counts in any order of problems; shapes [problems] or numbers.

        `wrong` holds the votes by problem; a problem that it lacks has no wrong answer.

        Raises:
            StageError: no problems, one listed twice, or impossible counts.
        """
        if not len(problem_ids):
            raise StageError("there are no samples to score", field="evaluate")
        if len(set(problem_ids)) != len(problem_ids):
            raise StageError("a problem is listed twice", field="evaluate")
        order = np.argsort(np.array(problem_ids, dtype=object), kind="stable")

        def column(values: npt.ArrayLike) -> Counts:
            return np.broadcast_to(np.asarray(values, dtype=np.int64), len(problem_ids))[order]

        total, correct = checked_counts(column(n), column(c))
        ids = tuple(problem_ids[i] for i in order)
        votes = None if wrong is None else tuple(wrong.get(one, ()) for one in ids)
        if votes and any(n < c + sum(own) for n, c, own in zip(total, correct, votes, strict=True)):
            raise StageError("a problem has more answers than samples", field="evaluate")
        return cls(ids, total, correct, column(truncated), column(tokens), votes)


def problem_outcomes(samples: pa.Table | Sequence[str | Path]) -> Outcomes:
    """Outcomes from evaluation samples: a table of the trajectory schema, or the parquet files that hold
    them.

    Raises:
        StageError: no samples, or files off the schema.
    """
    import pyarrow.parquet as pq

    if not isinstance(samples, pa.Table):
        for path in samples:
            check_schema(path)
        if not samples:
            raise StageError("there are no sample files to score", field="evaluate")
        samples = pa.concat_tables(pq.read_table(path, columns=_COLUMNS) for path in samples)
    ids, index = np.unique(np.array(samples["problem_id"].to_pylist(), dtype=object), return_inverse=True)

    def per_problem(weights: npt.NDArray[Any]) -> Counts:
        return np.rint(np.bincount(index, weights=weights, minlength=len(ids))).astype(np.int64)

    verdicts = np.array(samples["verdict"].to_pylist(), dtype=object)
    return Outcomes.from_counts(
        ids.tolist(),
        n=per_problem(np.ones(len(verdicts))),
        c=per_problem(verdicts == CORRECT),
        truncated=per_problem(~samples["finished"].to_numpy()),
        tokens=per_problem(samples["length"].to_numpy()),
        wrong=wrong_votes_in(samples),
    )


def summarise(outcomes: Outcomes, ks: Sequence[int], seed: int = 0, majority: Sequence[int] = ()) -> dict[str, Any]:
    """avg@n, pass@k and majority@n with 95 % bootstrap intervals over problems, and what they rest on.

    Returns:
        ``{"avg@32": {value, low, high}, "pass@8": {...}, ..., "majority@32": {...}, problems, samples, truncated
        (share of samples), mean_length (completion tokens a sample), sampling_sd (of avg@n; None with one sample a
        problem)}``. majority@n is left out where there is one sample a problem, or the answers are not known;
        majority@k of the further k in `majority` goes before it.

    Raises:
        ConfigError: a k above the samples of some problem.
        StageError: metrics that exclude each other, see ``bounds.check_summary``.
    """
    values = problem_values(outcomes, ks, majority)
    samples = int(outcomes.n.sum())
    summary = {
        **{
            name: one.to_dict()
            for name, one in zip(values, intervals(np.stack(list(values.values())), seed=seed), strict=True)
        },
        "problems": len(outcomes),
        "samples": samples,
        "truncated": float(outcomes.truncated.sum() / samples),
        "mean_length": float(outcomes.tokens.sum() / samples),
        "sampling_sd": sampling_sd(outcomes.n, outcomes.c),
    }
    check_summary(summary, outcomes.avg_name, float((outcomes.c > 0).mean()))
    return summary


def compare(outcomes_a: Outcomes, outcomes_b: Outcomes, ks: Sequence[int], seed: int = 0) -> dict[str, Any]:
    """Paired differences a - b of every metric over the same problems, with 95 % bootstrap intervals.

    Returns:
        ``{"avg@32": {value, low, high, a, b}, "pass@8": {...}, ..., problems}``: value is the mean
        difference, a and b the two means. avg and majority are named after ``outcomes_a``; majority is there where
        both sides have it.

    Raises:
        StageError: the two are not over the same problems; says how they differ.
        ConfigError: a k above the samples of some problem.
    """
    check_same_problems(outcomes_a.problem_ids, outcomes_b.problem_ids)
    values_a, values_b = problem_values(outcomes_a, ks), problem_values(outcomes_b, ks)
    if len(values_a) != len(values_b):
        values_a, values_b = (_without_majority(values) for values in (values_a, values_b))
    a, b = np.stack(list(values_a.values())), np.stack(list(values_b.values()))
    return {
        **{
            name: {**one.to_dict(), "a": float(mean_a), "b": float(mean_b)}
            for name, one, mean_a, mean_b in zip(
                values_a, intervals(a - b, seed=seed), a.mean(axis=1), b.mean(axis=1), strict=True
            )
        },
        "problems": len(outcomes_a),
    }


def problem_values(outcomes: Outcomes, ks: Sequence[int], majority: Sequence[int] = ()) -> Mapping[str, Floats]:
    """Every metric's value for each problem, shape [problems], by name: avg, pass@k with rising k, majority@n.

    `majority` holds further k of majority@k; they cost a thousand draws a problem each.
    """
    values = {
        outcomes.avg_name: avg_at_k(outcomes.n, outcomes.c),
        **{f"pass@{k}": pass_at_k(outcomes.n, outcomes.c, k) for k in sorted(set(ks))},
    }
    if outcomes.wrong is not None and outcomes.n.max() > 1:  # of a single sample it is avg@1
        values |= {f"majority@{k}": outcomes.majority(k) for k in sorted({k for k in majority if k > 1})}
        values[outcomes.majority_name] = outcomes.majority()
    return values


def _without_majority(values: Mapping[str, Floats]) -> Mapping[str, Floats]:
    return {name: value for name, value in values.items() if not name.startswith("majority@")}


def check_same_problems(first: Sequence[str], *others: Sequence[str]) -> None:
    """Refuse evaluations that are not over the same problems, each given as its problem ids.

    Raises:
        StageError: One differs from the first; says how.
    """
    for other in others:
        only = [("first", sorted(set(first) - set(other))), ("second", sorted(set(other) - set(first)))]
        parts = [
            f"{len(ids)} only in the {side} ({', '.join(ids[:3])}{', ...' if len(ids) > 3 else ''})"
            for side, ids in only
            if ids
        ]
        if parts:
            common = len(set(first) & set(other))
            raise StageError(
                f"the evaluations are over different problems: {common} in both, {' and '.join(parts)}",
                field="evaluate",
                fix="evaluate both policies on the same problem set",
            )
