"""The study's table: the base, what every arm ends with, and paired differences over the same problems and seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rloop_core.evaluation.selection import BIASED
from rloop_core.results.compare.table import difference_name
from rloop_core.results.study.effects import Effect, crossed_effects
from rloop_core.results.study.record import BASE, Policy, Side, StudyRecord
from rloop_core.results.tables import Table


@dataclass(frozen=True)
class Row:
    """One policy of an arm, or the difference of two, on one set.

    Attributes:
        set: The problem set.
        name: "base", an arm's title, or one minus another.
        kind: `policy`, `hindsight` (chosen by its own evaluation), or `difference`.
        arms: The arm, or the two arms of the difference; the base that is subtracted is the arm's own.
        policy: Which policy that is; for a difference the first one's.
        seeds: Seeds that it rests on.
        cells: Effect by metric; avg@n first, then pass@k with rising k.
        about: What a reader should know.
    """

    set: str
    name: str
    kind: str
    arms: tuple[str, ...]
    policy: str
    seeds: tuple[int, ...]
    cells: dict[str, Effect]
    about: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        cells = {metric: one.to_dict() for metric, one in self.cells.items()}
        return {**self.__dict__, "arms": list(self.arms), "seeds": list(self.seeds), "cells": cells}


@dataclass(frozen=True)
class StudyTable:
    """Everything that is compared at the end of training.

    Attributes:
        policies: Base, every arm's last policy, and the reference's best one in hindsight, by set.
        differences: What the study is about: arms minus the reference, the main arm minus the best in hindsight and
            minus the base, by set.
        ablations: Every ablation minus the main arm, by set.
        iterations: The main arm after each iteration minus the reference at equal RL steps, by set.
    """

    policies: dict[str, list[Row]]
    differences: dict[str, list[Row]]
    ablations: dict[str, list[Row]]
    iterations: dict[str, list[Row]]

    def rows(self) -> list[Row]:
        """All rows."""
        parts = (self.policies, self.differences, self.ablations, self.iterations)
        return [row for part in parts for own in part.values() for row in own]

    def difference(self, label: str, first: str, second: str) -> Row | None:
        """The difference of two arms' last policies on a set; of the main arm with itself: to the base."""
        rows = [*self.differences.get(label, ()), *self.ablations.get(label, ())]
        return next((row for row in rows if row.arms == (first, second) and not row.about), None)


def study_table(record: StudyRecord) -> StudyTable:
    """Compare the arms at the end of training; what is missing is left out."""
    table = StudyTable({}, {}, {}, {})
    for label in record.sets:
        table.policies[label] = _policies(record, label)
        table.differences[label] = _differences(record, label)
        main = _final(record, label, record.study.main)
        pairs = [(_final(record, label, name), main) for name in record.ablations]
        table.iterations[label] = by_iteration(record, label)
        table.ablations[label] = [row for one, other in pairs if (row := difference_row(record, label, one, other))]
    return table


def policy_row(record: StudyRecord, label: str, side: Side, name: str, about: str = "") -> Row | None:
    """A side's mean values; None where no seed has it."""
    seeds = list(side.policies)
    if not seeds:
        return None
    effects = crossed_effects(record.values(label, side, seeds), within=(0.0, 1.0))
    shown = sorted({policy.label for policy in side.policies.values()})
    kind = "hindsight" if about else "policy"
    cells = dict(zip(record.metrics[label], effects, strict=True))
    return Row(label, name, kind, (side.arm,), ", ".join(shown), tuple(seeds), cells, about)


def difference_row(
    record: StudyRecord, label: str, first: Side, second: Side, name: str = "", about: str = ""
) -> Row | None:
    """The first minus the second, paired over problems and over the seeds that both have; None where there is none."""
    seeds = [seed for seed in first.policies if seed in second.policies]
    if not seeds:
        return None
    paired = record.values(label, first, seeds) - record.values(label, second, seeds)
    cells = dict(zip(record.metrics[label], crossed_effects(paired), strict=True))
    titles = record.titles
    name = name or difference_name(titles[first.arm], titles[second.arm])
    shown = ", ".join(sorted({first.policies[seed].label for seed in seeds}))
    return Row(label, name, "difference", (first.arm, second.arm), shown, tuple(seeds), cells, about)


def chosen_on(record: StudyRecord) -> tuple[str, str, bool]:
    """The set and the metric by which a best checkpoint is chosen, and whether that is hindsight.

    It is not where the config names a validation set (`evaluate.select_on`); else the first set and avg@n are taken.
    """
    asked = next(iter(record.arms.values())).run.config.evaluate
    if asked.select_on in record.sets:
        label = str(asked.select_on)
        named = [name for name in record.metrics[label] if name == asked.select_by]
        return label, (named or record.metrics[label])[0], False
    return record.sets[0], record.metrics[record.sets[0]][0], True


def best_in_hindsight(record: StudyRecord, label: str, arm: str) -> Side:
    """The checkpoint of each seed that is best on the set to choose on, for any set."""
    judge, metric, _ = chosen_on(record)
    place = record.metrics[judge].index(metric)
    chosen: dict[int, Policy] = {}
    for seed in record.study.seeds:
        found = [one for one in record.checkpoints(judge, arm, seed) if one.kind in ("snapshot", "endpoint")]
        found = [one for one in found if one in record.checkpoints(label, arm, seed)]
        if len(found) > 1:
            means = [float(record.values(judge, Side(arm, {seed: one}), [seed])[place].mean()) for one in found]
            chosen[seed] = found[means.index(max(means))]
    return Side(arm, chosen)


def against_best(record: StudyRecord, label: str) -> Row | None:
    """What the main arm ends with minus the reference's best checkpoint."""
    main, reference = record.study.main, record.study.reference
    best = best_in_hindsight(record, label, reference)
    name = difference_name(record.titles[main], _best(record, reference))
    return difference_row(record, label, _final(record, label, main), best, name, f"against {_chosen(record)}")


def by_step(record: StudyRecord) -> dict[str, dict[str, dict[Policy, Row]]]:
    """Every evaluated policy's values over the seeds, in the order of training, by set and arm."""
    return {label: {arm: _path(record, label, arm) for arm in record.titles} for label in record.sets}


def by_iteration(record: StudyRecord, label: str) -> list[Row]:
    """What each iteration of the main arm ends with minus the reference at equal RL steps."""
    main, reference = record.study.main, record.study.reference
    theirs = {one.step: one for one in record.policies(label, reference) if one.kind in ("snapshot", "endpoint")}
    rows = [
        difference_row(
            record, label, record.at(label, main, one), record.at(label, reference, theirs[one.step]),
            difference_name(one.label, theirs[one.step].label), "at equal RL steps",
        )
        for one in record.policies(label, main) if one.kind == "theta" and one.step in theirs
    ]  # fmt: skip
    return [row for row in rows if row]


def rows_table(name: str, rows: Sequence[Row]) -> Table:
    """Rows in long form, for CSV."""
    columns = ("set", "row", "kind", "policy", "metric", "value", "low", "high", "crossed_low", "crossed_high",
               "seeds_low", "seeds_high", "seeds", "by_seed", "about")  # fmt: skip
    long = [
        (row.set, row.name, row.kind, row.policy, metric, one.value, one.low, one.high, *(one.crossed or (None, None)),
         *(one.seeds or (None, None)), " ".join(map(str, row.seeds)), " ".join(f"{value:.6f}" for value in one.by_seed),
         row.about)
        for row in rows for metric, one in row.cells.items()
    ]  # fmt: skip
    return Table(name, columns, tuple(long))


def values_table(record: StudyRecord) -> Table:
    """Every value that the study rests on: one row a seed, arm, set, checkpoint and metric."""
    rows = []
    for label in record.sets:
        for arm in record.titles:
            for seed in record.study.seeds:
                for policy in record.checkpoints(label, arm, seed):
                    means = record.values(label, Side(arm, {seed: policy}), [seed]).mean(axis=(1, 2))
                    rows += [
                        (seed, arm, label, policy.label, policy.kind, policy.step, metric, float(value))
                        for metric, value in zip(record.metrics[label], means, strict=True)
                    ]
    return Table("study", ("seed", "arm", "set", "checkpoint", "kind", "step", "metric", "value"), tuple(rows))


def _policies(record: StudyRecord, label: str) -> list[Row]:
    reference = record.study.reference
    base = next((found for arm in record.titles if (found := record.at(label, arm, BASE)).policies),
                Side(reference, {}))  # fmt: skip
    rows = [policy_row(record, label, base, "base")]
    for arm in record.titles:
        rows.append(policy_row(record, label, _final(record, label, arm), record.titles[arm]))
        if arm == reference:
            about = f"{_chosen(record)}{f'; {BIASED}' if label == chosen_on(record)[0] else ''}"
            rows.append(policy_row(record, label, best_in_hindsight(record, label, arm), _best(record, arm), about))
    return [row for row in rows if row]


def _differences(record: StudyRecord, label: str) -> list[Row]:
    main, reference = record.study.main, record.study.reference
    ours, theirs = _final(record, label, main), _final(record, label, reference)
    rows = [difference_row(record, label, ours, theirs)]
    rows += [difference_row(record, label, _final(record, label, arm), theirs) for arm in record.ablations]
    rows.append(against_best(record, label))
    name = difference_name(record.titles[main], "base")
    rows.append(difference_row(record, label, ours, record.at(label, main, BASE), name))
    return [row for row in rows if row]


def _final(record: StudyRecord, label: str, arm: str) -> Side:
    return record.at(label, arm, record.final(label, arm))


def _chosen(record: StudyRecord) -> str:
    judge, metric, _ = chosen_on(record)
    return f"each seed's checkpoint with the highest {metric} on {judge}"


def _best(record: StudyRecord, arm: str) -> str:
    in_hindsight = chosen_on(record)[2]
    return f"{record.titles[arm]}, {'best checkpoint in hindsight' if in_hindsight else 'early stopping'}"


def _path(record: StudyRecord, label: str, arm: str) -> dict[Policy, Row]:
    title = record.titles[arm]
    rows = {one: policy_row(record, label, record.at(label, arm, one), title) for one in record.policies(label, arm)}
    return {policy: row for policy, row in rows.items() if row}
