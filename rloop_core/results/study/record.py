"""Read a study's runs from their store: which have begun, and every policy's values by seed and problem."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rloop_core.config import Config
from rloop_core.evaluation.metrics import Floats
from rloop_core.evaluation.outcomes import problem_values
from rloop_core.results.compare.arms import Arm, Checkpoint, read_arm
from rloop_core.results.compare.comparability import objections
from rloop_core.results.run_record import read_run
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


@dataclass
class StudyRecord:
    """A study's runs and evaluated policies, as its store holds them.

    Attributes:
        study: The study.
        store: Store of its runs.
        progress: Every run that the study asks for.
        arms: The runs that have begun, by arm and seed.
        sets: Evaluated problem sets, in the config's order.
        metrics: avg@n, then pass@k with rising k, by set.
        problems: The problem ids of each set, the same in every run.
        notes: What a reader should know.
        objections: Why runs are not comparable with the reference of their seed; there should be none.
    """

    study: StudyConfig
    store: Store
    progress: list[RunState] = field(default_factory=list)
    arms: dict[tuple[str, int], Arm] = field(default_factory=dict)
    sets: list[str] = field(default_factory=list)
    metrics: dict[str, list[str]] = field(default_factory=dict)
    problems: dict[str, tuple[str, ...]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    objections: list[str] = field(default_factory=list)
    _checkpoints: dict[tuple[str, str, int], dict[Policy, Checkpoint]] = field(default_factory=dict)
    _values: dict[tuple[str, str, int, Policy], Floats] = field(default_factory=dict)

    @property
    def titles(self) -> dict[str, str]:
        """Titles of the arms by short name: the reference, the main arm, then the ablations in the study's order."""
        order = [self.study.reference, self.study.main, *self.ablations]
        return {name: self.study.arms[name].title for name in order}

    @property
    def ablations(self) -> list[str]:
        """The arms beside the main one and the reference."""
        return [name for name in self.study.arms if name not in (self.study.main, self.study.reference)]

    def ends(self, label: str) -> tuple[str, ...]:
        """Return the metrics of headlines on a set: avg@n, and the pass@k of the greatest k where there is one."""
        passes = [name for name in self.metrics[label] if name.startswith("pass@")]
        return (self.metrics[label][0], *passes[-1:])

    def missing(self) -> list[RunState]:
        """Return the runs that are not finished."""
        return [run for run in self.progress if not run.finished]

    def checkpoints(self, label: str, arm: str, seed: int) -> dict[Policy, Checkpoint]:
        """Return a run's evaluated policies on a set, in the order of training."""
        return self._checkpoints.get((label, arm, seed), {})

    def policies(self, label: str, arm: str) -> list[Policy]:
        """Return the policies that any seed of an arm has on a set, in the order of training."""
        return sorted({policy for seed in self.study.seeds for policy in self.checkpoints(label, arm, seed)})

    def final(self, label: str, arm: str) -> Policy | None:
        """Return the policy of an arm after all its RL steps; None where no seed has come so far."""
        totals = {run.total_steps for (name, _), run in self.arms.items() if name == arm}
        ends = [one for one in self.policies(label, arm) if one.kind in ("theta", "endpoint") and one.step in totals]
        return ends[-1] if ends else None

    def at(self, label: str, arm: str, policy: Policy | None) -> Side:
        """Return one policy of an arm on a set at the seeds that have come to the end, or at all seeds if none has.

        Seeds under way are left out, because a curve must not jump where one of them ends.
        """
        final = self.final(label, arm)
        with_it, whole = (
            [seed for seed in self.study.seeds if one in self.checkpoints(label, arm, seed)] for one in (policy, final)
        )
        return Side(arm, {seed: policy for seed in with_it if policy and (seed in whole or not whole)})

    def final_side(self, label: str, arm: str) -> Side:
        """Return what an arm ends with at the seeds that have come to the end."""
        return self.at(label, arm, self.final(label, arm))

    def values(self, label: str, side: Side, seeds: Sequence[int]) -> Floats:
        """Return a side's values at some of its seeds, shape [metrics, seeds, problems]."""
        return np.stack([self._values[label, side.arm, seed, side.policies[seed]] for seed in seeds], axis=1)

    def values_of(self, label: str, arm: str, seed: int, policy: Policy) -> Floats:
        """Return one policy's mean values, shape [metrics]."""
        means: Floats = self._values[label, arm, seed, policy].mean(axis=1)
        return means

    def settle(self) -> None:
        """Agree on each set's problems and metrics, and compute the values; what does not fit becomes a note."""
        for (arm, seed), run in self.arms.items():
            for label, checkpoints in run.checkpoints.items():
                self._checkpoints[label, arm, seed] = {Policy.of(one): one for one in checkpoints}
        labels = dict.fromkeys(source.label for run in self.arms.values() for source in run.run.config.evaluate.sets)
        self.sets = [label for label in labels if any(key[0] == label for key in self._checkpoints)]
        for label in self.sets:
            runs = {key[1:]: policies for key, policies in self._checkpoints.items() if key[0] == label}
            outcomes = [one.outcomes.problem_ids for policies in runs.values() for one in policies.values()]
            self.problems[label] = Counter(outcomes).most_common(1)[0][0]
            values = {
                (arm, seed, policy): _values(one) if one.outcomes.problem_ids == self.problems[label] else {}
                for (arm, seed), policies in runs.items()
                for policy, one in policies.items()
            }
            names = Counter(tuple(by_metric) for by_metric in values.values() if by_metric)
            self.metrics[label] = list(names.most_common(1)[0][0])
            for (arm, seed, policy), by_metric in values.items():
                if list(by_metric) == self.metrics[label]:
                    self._values[label, arm, seed, policy] = np.stack(list(by_metric.values()))
                    continue
                why = "other metrics than most" if by_metric else "other problems than most"
                self.notes.append(f"{self.arms[arm, seed].run.name}, {policy.label} on {label} has {why}: left out.")
                del runs[arm, seed][policy]


def read_study(study: StudyConfig, store: Store, cache: Path) -> StudyRecord:
    """Read every run of a study that has begun; what is missing is left out.

    Args:
        study: The study.
        store: The object store with its runs.
        cache: Folder for copies of files of remote stores.

    Raises:
        StoreError: The store cannot be read.
    """
    record = StudyRecord(study, store)
    names: dict[str, list[str]] = {}
    for run in study_runs(study, store.uri):
        name, stages = run.config.name, len(stages_of(run.config))
        if not store.exists(f"{name}/run.json"):
            record.progress.append(RunState(run.arm, run.seed, name, 0, stages))
            continue
        stored = read_run(store, name, cache)
        record.progress.append(RunState(run.arm, run.seed, name, len(stored.manifests), stages))
        record.arms[run.arm, run.seed] = read_arm(record.titles[run.arm], stored)
        notes = [note for note in stored.notes if note != stored.incomplete]
        for note in [*notes, *_other_config(run.config, stored.config)]:
            names.setdefault(note, []).append(name)
    record.notes += [f"{', '.join(runs)}: {note}" for note, runs in names.items()]
    record.settle()
    record.objections += _objections(record)
    steps = {arm.total_steps for arm in record.arms.values()}
    if len(steps) > 1:
        record.notes.append(f"The arms have unequal numbers of RL steps: {', '.join(map(str, sorted(steps)))}.")
    return record


def _objections(record: StudyRecord) -> list[str]:
    """Return why runs are not comparable with the reference of their seed."""
    names: dict[str, list[str]] = {}
    for (arm, seed), run in record.arms.items():
        reference = record.arms.get((record.study.reference, seed))
        if reference is None or arm == record.study.reference:
            continue
        pair = (run, reference) if run.run.config.arm == "rloop" else (reference, run)
        for objection in objections(pair[0].run, pair[1].run):
            names.setdefault(objection, []).append(run.run.name)
    return [f"{', '.join(runs)}: {objection}" for objection, runs in names.items()]


def _values(checkpoint: Checkpoint) -> dict[str, Floats]:
    """Return values by metric; pass@1 is left out, for it is avg@n."""
    ks = [int(name.removeprefix("pass@")) for name in checkpoint.summary if name.startswith("pass@")]
    possible = [k for k in ks if 1 < k <= int(checkpoint.outcomes.n.min())]
    return dict(problem_values(checkpoint.outcomes, possible))


def _other_config(asked: Config, stored: Config) -> list[str]:
    """Return a note if a run was made under another config than the study's."""
    ours, theirs = (config.model_dump(mode="json", exclude={"placement"}) for config in (asked, stored))
    differing = [name for name in ours if ours[name] != theirs.get(name)]
    if not differing:
        return []
    return [f"it was last started with another config than the study's ({', '.join(differing)} differ)."]
