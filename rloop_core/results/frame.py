"""The outcomes of every evaluated policy of one run or several, in one table, and the values that are read off it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rloop_core.evaluation.metrics import Floats, avg_at_k, headline_metrics
from rloop_core.evaluation.outcomes import Outcomes, problem_outcomes, problem_values
from rloop_core.results.intervals import Effect
from rloop_core.results.run_reader import UNREADABLE, RunRecord, rl_steps, sample_files, stored_evaluation
from rloop_core.store import BASE_ITERATION

if TYPE_CHECKING:
    import pandas as pd

KINDS = ("base", "snapshot", "endpoint", "theta")
"""Kinds of policies: theta_0, one within an RL phase, the last of vanilla RL, one after RFT."""
ENDS = ("theta", "endpoint")
_ROUNDING = 1e-9


class Policy(NamedTuple):
    """A policy's place in the runs of an arm; sorts in the order of training."""

    step: int
    """RL steps since theta_0; theta_{i+1} has as many as the end of phase i."""
    order: int
    """Index of its kind in `KINDS`."""
    label: str
    """"base", "step 50", "theta_1"."""

    @property
    def kind(self) -> str:
        """One of `KINDS`."""
        return KINDS[self.order]


BASE = Policy(0, 0, "base")
Key = tuple[str, str, int]
"""A problem set, an arm and a seed."""


class Side(NamedTuple):
    """One side of a comparison: an arm, and which of its policies at each seed."""

    arm: str
    policies: dict[int, Policy]


@dataclass(frozen=True)
class RunState:
    """The progress of one run of a study."""

    arm: str
    seed: int
    name: str
    done: int
    """Finished stages."""
    stages: int

    @property
    def finished(self) -> bool:
        """Return True if every stage is in the store."""
        return self.done >= self.stages

    @property
    def state(self) -> str:
        """ "finished", "3 of 11 stages" or "not begun"."""
        if self.finished:
            return "finished"
        return f"{self.done} of {self.stages} stages" if self.done else "not begun"


@dataclass
class Results:
    """Runs of one arm or several over seeds, and what their evaluated policies achieved on each problem."""

    runs: dict[tuple[str, int], RunRecord]
    """The runs that have begun, by arm and seed."""
    titles: dict[str, str]
    """Titles of the arms by short name, in the order of tables."""
    seeds: tuple[int, ...]
    main: str
    """The arm that it is about."""
    reference: str | None = None
    """The arm that all others are compared with."""
    progress: list[RunState] = field(default_factory=list)
    """Every run that a study asks for."""
    notes: list[str] = field(default_factory=list)
    not_comparable: list[str] = field(default_factory=list)
    """Why runs are not comparable with the reference of their seed."""
    resampling: int = 0
    """Seed of the bootstrap."""
    under_way: bool = False
    """Take the last policy of an unfinished run as its final one."""
    snapshots: bool = True
    """Read the policies within RL phases too."""
    frame: pd.DataFrame = field(init=False)
    """One row for each arm, seed, set, policy (`step`, `kind`, `policy`) and problem.

    Its counts: `n` samples, `c` correct ones, `truncated` ones, completion `tokens`; and majority@n, nan if not known.
    """
    files: dict[tuple[str, str, int, Policy], list[Path]] = field(default_factory=dict, init=False)
    """Parquet files with a policy's samples."""
    sets: list[str] = field(init=False)
    """Evaluated problem sets, in the config's order."""
    metrics: dict[str, list[str]] = field(default_factory=dict, init=False)
    """avg@n, pass@k with rising k, majority@n, by set."""
    problems: dict[str, tuple[str, ...]] = field(default_factory=dict, init=False)
    """Problem ids by set, sorted."""
    evaluated: dict[Key, list[Policy]] = field(default_factory=dict, init=False)
    """Evaluated policies in the order of training."""
    effects: dict[tuple[str, str], list[Effect]] = field(default_factory=dict, init=False)
    """Means with intervals that were computed once, by set and sides."""
    _rows: dict[tuple[str, str, int, Policy], pd.DataFrame] = field(default_factory=dict, init=False)
    """The table's rows of each policy, sorted by problem."""
    _values: dict[tuple[str, str, int, Policy], dict[str, Floats]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        """Read every evaluation, and agree on each set's problems and metrics."""
        import pandas as pd

        for (arm, seed), run in self.runs.items():
            for label, policy, outcomes, files in evaluations(run, self.snapshots):
                self.files[label, arm, seed, policy] = files
                self._rows[label, arm, seed, policy] = _rows(outcomes, arm=arm, seed=seed, set=label, policy=policy)
        self.frame = pd.concat(self._rows.values(), ignore_index=True) if self._rows else pd.DataFrame()
        labels = dict.fromkeys(source.label for run in self.runs.values() for source in run.config.evaluate.sets)
        self.sets = [label for label in labels if any(key[0] == label for key in self.files)]
        for label in self.sets:
            self._settle(label)

    def _settle(self, label: str) -> None:
        """Agree on a set's problems and metrics; policies that do not fit are left out, with a note."""
        found: dict[tuple[str, int, Policy], tuple[tuple[str, ...], dict[str, Floats]]] = {}
        config = (self.arm_runs(self.main) or list(self.runs.values()))[0].config.evaluate
        for (of_set, arm, seed, policy), rows in self._rows.items():
            if of_set == label:
                found[arm, seed, policy] = tuple(rows["problem"]), metric_values(rows, config.of(label).k)
        problems = Counter(ids for ids, _ in found.values()).most_common(1)[0][0]
        metrics = Counter(tuple(values) for ids, values in found.values() if ids == problems).most_common(1)[0][0]
        self.problems[label], self.metrics[label] = problems, list(metrics)
        for (arm, seed, policy), (ids, values) in found.items():
            if ids == problems and tuple(values) == metrics:
                self._values[label, arm, seed, policy] = values
                self.evaluated.setdefault((label, arm, seed), []).append(policy)
            else:
                why = "problems" if ids != problems else "metrics"
                name = self.runs[arm, seed].name
                self.notes.append(f"{name}, {policy.label} on {label} has other {why} than most: left out.")

    @property
    def pair(self) -> tuple[str, ...]:
        """The arms that figures show: the main one, and the reference if there is one."""
        return (self.main,) if self.reference is None else (self.main, self.reference)

    @property
    def ablations(self) -> list[str]:
        """The arms beside the main one and the reference."""
        return [name for name in self.titles if name not in self.pair]

    @cached_property
    def steps(self) -> dict[tuple[str, int], list[dict[str, Any]]]:
        """One row an RL step by arm and seed, see `rl_steps`."""
        return {key: rl_steps(run) for key, run in self.runs.items()}

    def arm_runs(self, arm: str) -> list[RunRecord]:
        """Return the runs of an arm that have begun."""
        return [run for (name, _), run in self.runs.items() if name == arm]

    def restarts(self, arm: str) -> bool:
        """Return True if each RL phase starts from the refined policy: vanilla RL and one ablation do not."""
        return any(run.config.arm == "rloop" and run.config.explore.start == "theta" for run in self.arm_runs(arm))

    def policies(self, label: str, arm: str, seed: int | None = None) -> list[Policy]:
        """Return the policies that an arm has on a set at a seed, or at any, in the order of training."""
        seeds = self.seeds if seed is None else (seed,)
        return sorted({policy for one in seeds for policy in self.evaluated.get((label, arm, one), ())})

    def final(self, label: str, arm: str) -> Policy | None:
        """Return the policy of an arm after all its RL steps; None where no seed has come so far."""
        totals = {run.total_steps for run in self.arm_runs(arm)}
        ends = [one for one in self.policies(label, arm) if one.kind in ENDS]
        ends = [one for one in ends if self.under_way or one.step in totals]
        return ends[-1] if ends else None

    def at(self, label: str, arm: str, policy: Policy | None) -> Side:
        """Return one policy of an arm on a set at the seeds that have come to the end, or at all seeds if none has.

        Seeds under way are left out, because a curve must not jump where one of them ends.
        """
        final = self.final(label, arm)
        with_it, whole = (
            [seed for seed in self.seeds if one in self.evaluated.get((label, arm, seed), ())]
            for one in (policy, final)
        )
        return Side(arm, {seed: policy for seed in with_it if policy and (seed in whole or not whole)})

    def final_side(self, label: str, arm: str) -> Side:
        """Return what an arm ends with at the seeds that have come to the end."""
        return self.at(label, arm, self.final(label, arm))

    def values(self, label: str, side: Side, seeds: Sequence[int]) -> dict[str, Floats]:
        """Return a side's values at some of its seeds by metric, shape [seeds, problems]."""
        tables = [self._values[label, side.arm, seed, side.policies[seed]] for seed in seeds]
        return {metric: np.stack([table[metric] for table in tables]) for metric in self.metrics[label]}

    def means(self, label: str, arm: str, seed: int, policy: Policy) -> dict[str, float]:
        """Return one policy's mean values by metric."""
        return {metric: float(own.mean()) for metric, own in self._values[label, arm, seed, policy].items()}

    def counts(self, label: str, arm: str, seed: int, policies: Sequence[Policy]) -> pd.DataFrame:
        """Return the table's rows of some policies, in their order, problem by problem."""
        import pandas as pd

        return pd.concat([self._rows[label, arm, seed, one] for one in policies])

    def ends(self, label: str) -> list[str]:
        """Return the metrics of headlines on a set: avg@n, and the pass@k of the greatest k where there is one."""
        return headline_metrics(self.metrics[label])

    def missing(self) -> list[RunState]:
        """Return the runs of the study that are not finished."""
        return [run for run in self.progress if not run.finished]


def metric_values(rows: pd.DataFrame, ks: Sequence[int]) -> dict[str, Floats]:
    """Return the values of each metric for one policy's problems: avg@n, pass@k with rising k from 2, majority@n.

    Args:
        rows: The policy's rows of the table, sorted by problem.
        ks: k of pass@k; those above the samples of a problem are left out.
    """
    outcomes = Outcomes.from_counts(rows["problem"].tolist(), rows["n"].to_numpy(), rows["c"].to_numpy())
    values = problem_values(outcomes, [k for k in ks if 1 < k <= int(outcomes.n.min())])
    if outcomes.n.max() > 1 and rows["majority"].notna().all():
        values[outcomes.majority_name] = rows["majority"].to_numpy(dtype=np.float64)
    return values


def evaluations(run: RunRecord, snapshots: bool = True) -> Iterator[tuple[str, Policy, Outcomes, list[Path]]]:
    """Yield set, policy, outcomes and sample files of each evaluated policy, set by set in the order of training.

    Policies whose samples cannot be read, or do not give the stored summary, are left out, with a note.
    """
    contents = {i: content for i in (BASE_ITERATION, *run.iterations) if (content := stored_evaluation(run, i))}
    for source in run.config.evaluate.sets:
        unusable: dict[str, list[str]] = {}
        for iteration, content in contents.items():
            for policy, summary, step in _evaluated(run, iteration, content, source.label):
                if step is not None and not snapshots:
                    continue
                files = sample_files(run, iteration, source.label, step)
                try:
                    outcomes = _checked(summary, files)
                except UNREADABLE as error:
                    unusable.setdefault(str(error), []).append(policy.label)
                else:
                    yield source.label, policy, outcomes, files
        for reason, names in unusable.items():
            run.note(f"{run.name}: {', '.join(names)} on {source.label} cannot be used, for {reason}.")


def _evaluated(
    run: RunRecord, iteration: int, content: Mapping[str, Any], label: str
) -> Iterator[tuple[Policy, dict[str, Any], int | None]]:
    """Yield an iteration's snapshots by RL step, then its final policy, each with its summary; None is no snapshot."""
    phase, vanilla = run.config.explore.steps, run.config.arm == "vanilla-rl"
    for step, summaries in sorted((int(step), summaries) for step, summaries in content["snapshots"].items()):
        # The endpoint of vanilla RL is its last snapshot, sampled a second time: one policy counts once.
        if label in summaries and not (vanilla and step == phase):
            total = iteration * phase + step
            yield Policy(total, KINDS.index("snapshot"), f"step {total}"), summaries[label], step
    if label in content["sets"]:
        kind = "base" if iteration == BASE_ITERATION else "endpoint" if vanilla else "theta"
        name = f"step {phase}" if kind == "endpoint" else run.policy_name(iteration)
        yield Policy((iteration + 1) * phase, KINDS.index(kind), name), content["sets"][label], None


def _checked(summary: Mapping[str, Any], files: Sequence[Path]) -> Outcomes:
    """Return the samples' outcomes; raise one of `UNREADABLE` if they do not give the stored summary."""
    outcomes = problem_outcomes(files)
    stored = summary.get(outcomes.avg_name, {}).get("value")
    counted = float(avg_at_k(outcomes.n, outcomes.c).mean())
    if stored is None or abs(stored - counted) > _ROUNDING:
        claim = "has none" if stored is None else f"says {stored:.4f}"
        raise ValueError(f"the samples give {outcomes.avg_name} = {counted:.4f} and the stored summary {claim}")
    return outcomes


def _rows(outcomes: Outcomes, *, arm: str, seed: int, set: str, policy: Policy) -> pd.DataFrame:
    import pandas as pd

    voted = outcomes.wrong is not None and outcomes.n.max() > 1
    return pd.DataFrame(
        {
            "arm": arm, "seed": seed, "set": set, "step": policy.step, "kind": policy.kind, "policy": policy.label,
            "problem": outcomes.problem_ids, "n": outcomes.n, "c": outcomes.c, "truncated": outcomes.truncated,
            "tokens": outcomes.tokens, "majority": outcomes.majority() if voted else np.nan,
        }
    )  # fmt: skip
