"""A study's runs as their store holds them: which are there, and every policy's values by seed and problem."""

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
from rloop_core.results.run_record import RunRecord, read_run
from rloop_core.results.study.config import StudyConfig, StudyRun, study_runs
from rloop_core.stages.order import stages_of
from rloop_core.store import Store

_KINDS = ("base", "snapshot", "endpoint", "theta")


class Policy(NamedTuple):
    """Which policy of a run: RL steps behind it, and what it is; sorts in the order of training."""

    step: int
    order: int
    kind: str
    label: str

    @classmethod
    def of(cls, one: Checkpoint) -> Policy:
        """A checkpoint's place in any run of its arm."""
        return cls(one.step, _KINDS.index(one.kind), one.kind, one.label)


BASE = Policy(0, 0, "base", "base")


class Side(NamedTuple):
    """One side of a comparison: an arm, and which of its policies at each seed."""

    arm: str
    policies: dict[int, Policy]


@dataclass(frozen=True)
class RunState:
    """How far one run has come: stages done, of how many."""

    arm: str
    seed: int
    name: str
    done: int
    stages: int

    @property
    def finished(self) -> bool:
        """Whether every stage is in the store."""
        return self.done >= self.stages


@dataclass
class StudyRecord:
    """Everything that the store knows about a study.

    Attributes:
        study: The study.
        store: Where its runs lie.
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
    _found: dict[tuple[str, str, int], dict[Policy, Checkpoint]] = field(default_factory=dict)
    _values: dict[tuple[str, str, int, Policy], Floats] = field(default_factory=dict)

    @property
    def titles(self) -> dict[str, str]:
        """What tables call the arms: the reference, the main arm, then the ablations in the study's order."""
        order = [self.study.reference, self.study.main, *self.ablations]
        return {name: self.study.arms[name].title for name in order}

    @property
    def ablations(self) -> list[str]:
        """The arms beside the main one and the reference."""
        return [name for name in self.study.arms if name not in (self.study.main, self.study.reference)]

    def ends(self, label: str) -> tuple[str, ...]:
        """The metrics of headlines on a set: avg@n, and the pass@k of the greatest k where there is one."""
        passes = [name for name in self.metrics[label] if name.startswith("pass@")]
        return (self.metrics[label][0], *passes[-1:])

    def missing(self) -> list[RunState]:
        """Runs that are not finished."""
        return [one for one in self.progress if not one.finished]

    def checkpoints(self, label: str, arm: str, seed: int) -> dict[Policy, Checkpoint]:
        """A run's evaluated policies on a set, in the order of training."""
        return self._found.get((label, arm, seed), {})

    def policies(self, label: str, arm: str) -> list[Policy]:
        """Policies that any seed of an arm has on a set, in the order of training."""
        return sorted({one for seed in self.study.seeds for one in self.checkpoints(label, arm, seed)})

    def final(self, label: str, arm: str) -> Policy | None:
        """What an arm ends with after all its RL steps; None where no seed has come so far."""
        totals = {one.total_steps for (name, _), one in self.arms.items() if name == arm}
        found = [one for one in self.policies(label, arm) if one.kind in ("theta", "endpoint") and one.step in totals]
        return found[-1] if found else None

    def at(self, label: str, arm: str, policy: Policy | None) -> Side:
        """One policy of an arm on a set, at the seeds that have come to the end; at all that have it if none has yet.

        Seeds under way have no part: a curve must not jump where one of them ends.
        """
        found = [seed for seed in self.study.seeds if policy in self.checkpoints(label, arm, seed)]
        final = self.final(label, arm)
        whole = [seed for seed in self.study.seeds if final in self.checkpoints(label, arm, seed)]
        found = [seed for seed in found if seed in whole] if whole else found
        return Side(arm, {seed: policy for seed in found if policy is not None})

    def values(self, label: str, side: Side, seeds: Sequence[int]) -> Floats:
        """A side's values at some of its seeds, shape [metrics, seeds, problems]."""
        return np.stack([self._values[label, side.arm, seed, side.policies[seed]] for seed in seeds], axis=1)

    def add(self, run: StudyRun, record: RunRecord) -> None:
        """Take in what one run has."""
        arm = read_arm(self.titles[run.arm], record)
        self.arms[run.arm, run.seed] = arm
        for label, found in arm.checkpoints.items():
            self._found[label, run.arm, run.seed] = {Policy.of(one): one for one in found}

    def settle(self) -> None:
        """Agree on each set's problems and metrics, and compute the values; what does not fit becomes a note."""
        labels = dict.fromkeys(one.label for arm in self.arms.values() for one in arm.run.config.evaluate.sets)
        self.sets = [label for label in labels if any(key[0] == label for key in self._found)]
        for label in self.sets:
            everything = [one for key, found in self._found.items() if key[0] == label for one in found.values()]
            self.problems[label] = Counter(one.outcomes.problem_ids for one in everything).most_common(1)[0][0]
            names = Counter(tuple(_values(one)) for one in everything if self._fits(label, one)).most_common(1)[0][0]
            self.metrics[label] = list(names)
            for (own, arm, seed), found in self._found.items():
                if own == label:
                    self._take(label, arm, seed, found)

    def _fits(self, label: str, one: Checkpoint) -> bool:
        return one.outcomes.problem_ids == self.problems[label]

    def _take(self, label: str, arm: str, seed: int, found: dict[Policy, Checkpoint]) -> None:
        for policy, one in list(found.items()):
            values = _values(one) if self._fits(label, one) else {}
            if list(values) == self.metrics[label]:
                self._values[label, arm, seed, policy] = np.stack(list(values.values()))
                continue
            why = "other metrics than most" if values else "other problems than most"
            self.notes.append(f"{self.arms[arm, seed].run.name}, {policy.label} on {label} has {why}: left out.")
            del found[policy]


def read_study(study: StudyConfig, store: Store, cache: Path) -> StudyRecord:
    """Read every run of a study that has begun; what is missing is left out, and known.

    Args:
        study: The study.
        store: The object store with its runs.
        cache: Folder for copies of files of remote stores.

    Raises:
        StoreError: The store cannot be read.
    """
    record = StudyRecord(study, store)
    told: dict[str, list[str]] = {}
    for run in study_runs(study, store.uri):
        stages = len(stages_of(run.config))
        if not store.exists(f"{run.config.name}/run.json"):
            record.progress.append(RunState(run.arm, run.seed, run.config.name, 0, stages))
            continue
        found = read_run(store, run.config.name, cache)
        record.progress.append(RunState(run.arm, run.seed, found.name, len(found.manifests), stages))
        record.add(run, found)
        notes = [note for note in found.notes if note != found.incomplete]
        for note in [*notes, *_other_config(run.config, found.config)]:
            told.setdefault(note, []).append(found.name)
    record.notes += [f"{', '.join(names)}: {note}" for note, names in told.items()]
    record.settle()
    record.objections += _objections(record)
    steps = {arm.total_steps for arm in record.arms.values()}
    if len(steps) > 1:
        record.notes.append(f"The arms have unequal numbers of RL steps: {', '.join(map(str, sorted(steps)))}.")
    return record


def _objections(record: StudyRecord) -> list[str]:
    """What a comparison of each run with its seed's reference would be refused for."""
    told: dict[str, list[str]] = {}
    for (arm, seed), one in record.arms.items():
        reference = record.arms.get((record.study.reference, seed))
        if reference is None or arm == record.study.reference:
            continue
        pair = (one.run, reference.run) if one.run.config.arm == "rloop" else (reference.run, one.run)
        for objection in objections(*pair):
            told.setdefault(objection, []).append(one.run.name)
    return [f"{', '.join(names)}: {objection}" for objection, names in told.items()]


def _values(one: Checkpoint) -> dict[str, Floats]:
    """Values by metric; pass@1 is left out, for it is avg@n."""
    ks = [int(name.removeprefix("pass@")) for name in one.summary if name.startswith("pass@")]
    possible = [k for k in ks if 1 < k <= int(one.outcomes.n.min())]
    return dict(problem_values(one.outcomes, possible))


def _other_config(asked: Config, found: Config) -> list[str]:
    """A note where a run was made under another config than the study's."""
    mine, other = (one.model_dump(mode="json", exclude={"placement"}) for one in (asked, found))
    differing = [name for name in mine if mine[name] != other.get(name)]
    if not differing:
        return []
    return [f"it was last started with another config than the study's ({', '.join(differing)} differ)."]
