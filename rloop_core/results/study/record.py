"""Arms over seeds: every policy's values by seed and problem; and the runs of a study, as its store holds them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rloop_core.config import Config
from rloop_core.evaluation.metrics import Floats, check_summary, headline_metrics
from rloop_core.evaluation.outcomes import check_same_problems, paired_differences, problem_values
from rloop_core.results.run_reader import read_run
from rloop_core.results.study.arms import Arm, Checkpoint, read_arm
from rloop_core.results.study.comparability import reasons_against
from rloop_core.results.study.config import StudyConfig, study_runs
from rloop_core.stages.inputs import stages_of
from rloop_core.store import Store

_KINDS = ("base", "snapshot", "endpoint", "theta")


class Policy(NamedTuple):
    """Place of a policy in a run: RL steps behind it, and its kind; sorts in the order of training."""

    step: int
    order: int
    kind: str
    label: str

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> Policy:
        """Return a checkpoint's place in any run of its arm."""
        return cls(checkpoint.step, _KINDS.index(checkpoint.kind), checkpoint.kind, checkpoint.label)


BASE = Policy(0, 0, "base", "base")


class Side(NamedTuple):
    """One side of a comparison: an arm, and which of its policies at each seed."""

    arm: str
    policies: dict[int, Policy]


@dataclass
class StudyRecord:
    """Runs of several arms over several seeds, and the values of their policies by seed and problem.

    Attributes:
        main: Short name of the arm that it is about.
        reference: Short name of the arm that all others are compared with.
        titles: Titles of the arms by short name, in the order of tables.
        seeds: Seeds of the runs.
        arms: The runs that have begun, by arm and seed.
        progress: Every run that a study asks for.
        notes: What a reader should know.
        not_comparable: Why runs are not comparable with the reference of their seed; there should be none.
        resampling: Seed of the bootstrap.
        under_way: Take the last policy of an unfinished run as its final one.
        sets: Evaluated problem sets, in the config's order.
        metrics: avg@n, pass@k with rising k, majority@n, by set, once the runs of a study have agreed on them.
        problems: Number of problems by set, likewise.
        evaluated: Evaluated policies by set, arm and seed, in the order of training.
    """

    main: str
    reference: str
    titles: dict[str, str]
    seeds: tuple[int, ...]
    arms: dict[tuple[str, int], Arm]
    progress: list[RunState] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    not_comparable: list[str] = field(default_factory=list)
    resampling: int = 0
    under_way: bool = False
    sets: list[str] = field(init=False)
    metrics: dict[str, list[str]] = field(default_factory=dict, init=False)
    problems: dict[str, int] = field(default_factory=dict, init=False)
    evaluated: dict[tuple[str, str, int], dict[Policy, Checkpoint]] = field(init=False)
    _values: dict[tuple[str, str, int, Policy], dict[str, Floats]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        """List the sets and the policies that are evaluated on them."""
        self.evaluated = {
            (label, arm, seed): {Policy.of(one): one for one in checkpoints}
            for (arm, seed), run in self.arms.items()
            for label, checkpoints in run.checkpoints.items()
        }
        labels = dict.fromkeys(source.label for run in self.arms.values() for source in run.run.config.evaluate.sets)
        self.sets = [label for label in labels if any(key[0] == label for key in self.evaluated)]

    @property
    def ablations(self) -> list[str]:
        """The arms beside the main one and the reference."""
        return [name for name in self.titles if name not in (self.main, self.reference)]

    @property
    def pair(self) -> tuple[str, str]:
        """The two arms that figures show: the main one and the reference."""
        return self.main, self.reference

    def runs(self, arm: str) -> list[Arm]:
        """Return the runs of an arm that have begun."""
        return [run for (name, _), run in self.arms.items() if name == arm]

    def checkpoints(self, label: str, arm: str, seed: int) -> dict[Policy, Checkpoint]:
        """Return a run's evaluated policies on a set, in the order of training."""
        return self.evaluated.get((label, arm, seed), {})

    def policies(self, label: str, arm: str) -> list[Policy]:
        """Return the policies that any seed of an arm has on a set, in the order of training."""
        return sorted({policy for seed in self.seeds for policy in self.checkpoints(label, arm, seed)})

    def final(self, label: str, arm: str) -> Policy | None:
        """Return the policy of an arm after all its RL steps; None where no seed has come so far."""
        totals = {run.total_steps for run in self.runs(arm)}
        ends = [one for one in self.policies(label, arm) if one.kind in ("theta", "endpoint")]
        ends = [one for one in ends if self.under_way or one.step in totals]
        return ends[-1] if ends else None

    def at(self, label: str, arm: str, policy: Policy | None) -> Side:
        """Return one policy of an arm on a set at the seeds that have come to the end, or at all seeds if none has.

        Seeds under way are left out, because a curve must not jump where one of them ends.
        """
        final = self.final(label, arm)
        with_it, whole = (
            [seed for seed in self.seeds if one in self.checkpoints(label, arm, seed)] for one in (policy, final)
        )
        return Side(arm, {seed: policy for seed in with_it if policy and (seed in whole or not whole)})

    def final_side(self, label: str, arm: str) -> Side:
        """Return what an arm ends with at the seeds that have come to the end."""
        return self.at(label, arm, self.final(label, arm))

    def values(self, label: str, side: Side, seeds: Sequence[int]) -> dict[str, Floats]:
        """Return a side's values at some of its seeds by metric, shape [seeds, problems]."""
        tables = [self._values_of(label, side.arm, seed, side.policies[seed]) for seed in seeds]
        return {metric: np.stack([table[metric] for table in tables]) for metric in tables[0]}

    def differences(self, label: str, first: Side, second: Side, seeds: Sequence[int]) -> dict[str, Floats]:
        """Return the first minus the second by metric of the first, paired by seed and problem.

        Raises:
            StageError: The two are not over the same problems; says how they differ.
        """
        for seed in seeds:
            policies = [self.evaluated[label, side.arm, seed][side.policies[seed]] for side in (first, second)]
            check_same_problems(*(policy.outcomes.problem_ids for policy in policies))
        return paired_differences(self.values(label, first, seeds), self.values(label, second, seeds))

    def means(self, label: str, arm: str, seed: int, policy: Policy) -> dict[str, float]:
        """Return one policy's mean values by metric."""
        return {metric: float(own.mean()) for metric, own in self._values_of(label, arm, seed, policy).items()}

    def _values_of(self, label: str, arm: str, seed: int, policy: Policy) -> dict[str, Floats]:
        """Return one policy's values by metric, shape [problems]: avg@n, pass@k with rising k, majority@n.

        Raises:
            StageError: Metrics exclude each other, see `metrics.check_summary`.
        """
        key = (label, arm, seed, policy)
        if key not in self._values:
            outcomes = self.evaluated[label, arm, seed][policy].outcomes
            config = (self.runs(self.main) or list(self.arms.values()))[0].run.config.evaluate
            ks = [k for k in config.of(label).k if 1 < k <= int(outcomes.n.min())]
            values = problem_values(outcomes, ks)
            means = {metric: {"value": float(own.mean())} for metric, own in values.items()}
            check_summary(means, outcomes.avg_name, float((outcomes.c > 0).mean()))
            self._values[key] = values
        return self._values[key]

    def ends(self, label: str) -> list[str]:
        """Return the metrics of headlines on a set: avg@n, and the pass@k of the greatest k where there is one."""
        return headline_metrics(self.metrics[label])

    def missing(self) -> list[RunState]:
        """Return the runs that are not finished."""
        return [run for run in self.progress if not run.finished]

    def settle(self) -> None:
        """Agree on each set's problems and metrics; policies that do not fit are left out, with a note."""
        for label in self.sets:
            runs = {key[1:]: policies for key, policies in self.evaluated.items() if key[0] == label}
            every = {(*run, policy): one for run, policies in runs.items() for policy, one in policies.items()}
            problems = Counter(one.outcomes.problem_ids for one in every.values()).most_common(1)[0][0]
            metrics = {
                key: tuple(self._values_of(label, *key))
                for key, one in every.items()
                if one.outcomes.problem_ids == problems
            }
            usual = Counter(metrics.values()).most_common(1)[0][0]
            self.problems[label], self.metrics[label] = len(problems), list(usual)
            for (arm, seed, policy), one in every.items():
                if metrics.get((arm, seed, policy)) != usual:
                    why = "metrics" if one.outcomes.problem_ids == problems else "problems"
                    name = self.arms[arm, seed].run.name
                    self.notes.append(f"{name}, {policy.label} on {label} has other {why} than most: left out.")
                    del runs[arm, seed][policy]


@dataclass(frozen=True)
class RunState:
    """Progress of one run: stages done, of how many."""

    arm: str
    seed: int
    name: str
    done: int
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


def read_study(study: StudyConfig, store: Store, cache: Path) -> StudyRecord:
    """Read every run of a study that has begun; what is missing is left out.

    Args:
        study: The study.
        store: The object store with its runs.
        cache: Folder for copies of files of remote stores.

    Raises:
        StoreError: The store cannot be read.
    """
    order = dict.fromkeys((study.reference, study.main, *study.arms))
    titles = {name: study.arms[name].title for name in order}
    progress: list[RunState] = []
    arms: dict[tuple[str, int], Arm] = {}
    names: dict[str, list[str]] = {}
    for run in study_runs(study, store.uri):
        name, stages = run.config.name, len(stages_of(run.config))
        if not store.exists(f"{name}/run.json"):
            progress.append(RunState(run.arm, run.seed, name, 0, stages))
            continue
        stored = read_run(store, name, cache)
        progress.append(RunState(run.arm, run.seed, name, len(stored.manifests), stages))
        arms[run.arm, run.seed] = read_arm(titles[run.arm], stored)
        notes = [note for note in stored.notes if note != stored.incomplete]
        for note in [*notes, *_other_config(run.config, stored.config)]:
            names.setdefault(note, []).append(name)
    record = StudyRecord(study.main, study.reference, titles, study.seeds, arms, progress, _by_note(names))
    record.settle()
    record.not_comparable = _reasons(record, study)
    steps = {arm.total_steps for arm in arms.values()}
    if len(steps) > 1:
        record.notes.append(f"The arms have unequal numbers of RL steps: {', '.join(map(str, sorted(steps)))}.")
    return record


def _reasons(record: StudyRecord, study: StudyConfig) -> list[str]:
    """Return why runs are not comparable with the reference of their seed; what an arm's `set` names is by design."""
    names: dict[str, list[str]] = {}
    for (arm, seed), run in record.arms.items():
        reference = record.arms.get((record.reference, seed))
        if reference is None or arm == record.reference:
            continue
        by_design = study.arms[arm].fields | study.arms[record.reference].fields
        for reason in reasons_against(run.run, reference.run, by_design):
            names.setdefault(reason, []).append(run.run.name)
    return _by_note(names)


def _by_note(names: Mapping[str, Sequence[str]]) -> list[str]:
    """Return each note once, with the names of its runs."""
    return [f"{', '.join(runs)}: {note}" for note, runs in names.items()]


def _other_config(asked: Config, stored: Config) -> list[str]:
    """Return a note if a run was made under another config than the study's."""
    ours, theirs = (config.model_dump(mode="json", exclude={"placement"}) for config in (asked, stored))
    differing = [name for name in ours if ours[name] != theirs.get(name)]
    if not differing:
        return []
    return [f"it was last started with another config than the study's ({', '.join(differing)} differ)."]
