"""The study's table: the base, every arm's last policy, and paired differences over the same problems and seeds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rloop_core.evaluation.selection import BIASED
from rloop_core.results.compare.table import difference_name
from rloop_core.results.study.intervals import Effect, crossed_effects
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
        policy: Label of the policy; for a difference the first one's.
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


@dataclass(frozen=True)
class StudyTable:
    """Comparisons at the end of training, each by set.

    Attributes:
        policies: Base, every arm's last policy, and the reference's best one in hindsight.
        differences: Arms minus the reference, and the main arm minus the best in hindsight and minus the base.
        ablations: Every ablation minus the main arm.
        iterations: The main arm after each iteration minus the reference at equal RL steps.
    """

    policies: dict[str, list[Row]]
    differences: dict[str, list[Row]]
    ablations: dict[str, list[Row]]
    iterations: dict[str, list[Row]]

    def rows(self) -> list[Row]:
        """Return all rows."""
        parts = (self.policies, self.differences, self.ablations, self.iterations)
        return [row for part in parts for rows in part.values() for row in rows]

    def difference(self, label: str, first: str, second: str) -> Row | None:
        """Return the difference of two arms' last policies on a set; of the main arm with itself: to the base."""
        rows = [*self.differences.get(label, ()), *self.ablations.get(label, ())]
        return next((row for row in rows if row.arms == (first, second) and not row.about), None)


def study_table(record: StudyRecord) -> StudyTable:
    """Compare the arms at the end of training; what is missing is left out."""
    main, table = record.study.main, StudyTable({}, {}, {}, {})
    for label in record.sets:
        table.policies[label] = _policies(record, label)
        table.differences[label] = _differences(record, label)
        end = record.final_side(label, main)
        table.ablations[label] = _present(
            difference_row(record, label, record.final_side(label, arm), end) for arm in record.ablations
        )
        table.iterations[label] = _by_iteration(record, label)
    return table


def policy_row(record: StudyRecord, label: str, side: Side, name: str, about: str = "") -> Row | None:
    """Return a side's mean values; None where no seed has it."""
    seeds = list(side.policies)
    if not seeds:
        return None
    effects = crossed_effects(record.values(label, side, seeds), within=(0.0, 1.0))
    policies = ", ".join(sorted({policy.label for policy in side.policies.values()}))
    kind = "hindsight" if about else "policy"
    cells = dict(zip(record.metrics[label], effects, strict=True))
    return Row(label, name, kind, (side.arm,), policies, tuple(seeds), cells, about)


def difference_row(
    record: StudyRecord, label: str, first: Side, second: Side, name: str = "", about: str = ""
) -> Row | None:
    """Return the first minus the second, paired over problems and the seeds that both have; None without such seeds."""
    seeds = [seed for seed in first.policies if seed in second.policies]
    if not seeds:
        return None
    paired = record.values(label, first, seeds) - record.values(label, second, seeds)
    cells = dict(zip(record.metrics[label], crossed_effects(paired), strict=True))
    name = name or difference_name(record.titles[first.arm], record.titles[second.arm])
    policies = ", ".join(sorted({first.policies[seed].label for seed in seeds}))
    return Row(label, name, "difference", (first.arm, second.arm), policies, tuple(seeds), cells, about)


def chosen_on(record: StudyRecord) -> tuple[str, str, bool]:
    """Return the set and the metric by which a best checkpoint is chosen, and whether that is hindsight.

    It is not where the config names a validation set (`evaluate.select_on`); else the first set and avg@n are taken.
    """
    config = next(iter(record.arms.values())).run.config.evaluate
    if config.select_on in record.sets:
        label = str(config.select_on)
        metrics = record.metrics[label]
        return label, config.select_by if config.select_by in metrics else metrics[0], False
    return record.sets[0], record.metrics[record.sets[0]][0], True


def against_best(record: StudyRecord, label: str) -> Row | None:
    """Return what the main arm ends with minus the reference's best checkpoint."""
    main = record.study.main
    name = difference_name(record.titles[main], _best_name(record))
    end, best = record.final_side(label, main), _best(record, label)
    return difference_row(record, label, end, best, name, f"against {_choice(record)}")


def by_step(record: StudyRecord) -> dict[str, dict[str, dict[Policy, Row]]]:
    """Return every evaluated policy's values over the seeds, in the order of training, by set and arm."""
    return {label: {arm: _path(record, label, arm) for arm in record.titles} for label in record.sets}


def rows_table(name: str, rows: Iterable[Row]) -> Table:
    """Return rows in long form, for CSV."""
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
    """Return every value that the study rests on: one row a seed, arm, set, checkpoint and metric."""
    rows = [
        (seed, arm, label, policy.label, policy.kind, policy.step, metric, float(value))
        for label in record.sets
        for arm in record.titles
        for seed in record.study.seeds
        for policy in record.checkpoints(label, arm, seed)
        for metric, value in zip(record.metrics[label], record.values_of(label, arm, seed, policy), strict=True)
    ]
    return Table("study", ("seed", "arm", "set", "checkpoint", "kind", "step", "metric", "value"), tuple(rows))


def _present(rows: Iterable[Row | None]) -> list[Row]:
    return [row for row in rows if row]


def _policies(record: StudyRecord, label: str) -> list[Row]:
    reference = record.study.reference
    bases = [base for arm in record.titles if (base := record.at(label, arm, BASE)).policies]
    rows = [policy_row(record, label, bases[0], "base")] if bases else []
    for arm, title in record.titles.items():
        rows.append(policy_row(record, label, record.final_side(label, arm), title))
        if arm == reference:
            about = f"{_choice(record)}{f'; {BIASED}' if label == chosen_on(record)[0] else ''}"
            rows.append(policy_row(record, label, _best(record, label), _best_name(record), about))
    return _present(rows)


def _differences(record: StudyRecord, label: str) -> list[Row]:
    main = record.study.main
    ours, theirs = record.final_side(label, main), record.final_side(label, record.study.reference)
    rows = [difference_row(record, label, ours, theirs)]
    rows += [difference_row(record, label, record.final_side(label, arm), theirs) for arm in record.ablations]
    rows.append(against_best(record, label))
    name = difference_name(record.titles[main], "base")
    return _present([*rows, difference_row(record, label, ours, record.at(label, main, BASE), name)])


def _by_iteration(record: StudyRecord, label: str) -> list[Row]:
    """Return what each iteration of the main arm ends with minus the reference at equal RL steps."""
    main, reference = record.study.main, record.study.reference
    theirs = {one.step: one for one in record.policies(label, reference) if one.kind in ("snapshot", "endpoint")}
    ours = [one for one in record.policies(label, main) if one.kind == "theta" and one.step in theirs]
    return _present(
        difference_row(
            record, label, record.at(label, main, one), record.at(label, reference, theirs[one.step]),
            difference_name(one.label, theirs[one.step].label), "at equal RL steps",
        )
        for one in ours
    )  # fmt: skip


def _best(record: StudyRecord, label: str) -> Side:
    """Return the reference's checkpoint of each seed that is best on the set to choose on, for any set."""
    judge, metric, _ = chosen_on(record)
    place, arm = record.metrics[judge].index(metric), record.study.reference
    chosen: dict[int, Policy] = {}
    for seed in record.study.seeds:
        means = {
            policy: record.values_of(judge, arm, seed, policy)[place]
            for policy in record.checkpoints(judge, arm, seed)
            if policy.kind in ("snapshot", "endpoint") and policy in record.checkpoints(label, arm, seed)
        }
        if len(means) > 1:
            chosen[seed] = max(means, key=means.__getitem__)
    return Side(arm, chosen)


def _choice(record: StudyRecord) -> str:
    judge, metric, _ = chosen_on(record)
    return f"each seed's checkpoint with the highest {metric} on {judge}"


def _best_name(record: StudyRecord) -> str:
    in_hindsight = chosen_on(record)[2]
    title = record.titles[record.study.reference]
    return f"{title}, {'best checkpoint in hindsight' if in_hindsight else 'early stopping'}"


def _path(record: StudyRecord, label: str, arm: str) -> dict[Policy, Row]:
    title = record.titles[arm]
    rows = {one: policy_row(record, label, record.at(label, arm, one), title) for one in record.policies(label, arm)}
    return {policy: row for policy, row in rows.items() if row}
