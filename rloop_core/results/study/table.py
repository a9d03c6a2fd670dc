"""The study's table: the base, every arm's last policy, and paired differences over the same problems and seeds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rloop_core.evaluation.metrics import Floats, headline_metrics
from rloop_core.results.selection import BIASED
from rloop_core.results.study.intervals import crossed_effects
from rloop_core.results.study.record import BASE, Policy, Side, StudyRecord
from rloop_core.results.tables import DIFFERENCE, POLICY, Row, Table, difference_name

Steps = dict[str, dict[str, dict[Policy, Row]]]
"""A row a policy, in the order of training, by set and arm."""


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
    main, table = record.main, StudyTable({}, {}, {}, {})
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
    seeds = tuple(side.policies)
    if not seeds:
        return None
    policies = ", ".join(sorted({policy.label for policy in side.policies.values()}))
    kind, values = "hindsight" if about else POLICY, record.values(label, side, seeds)
    return effects_row(record, label, name, kind, [values], (side.arm,), policies, seeds, about)


def difference_row(
    record: StudyRecord, label: str, first: Side, second: Side, name: str = "", about: str = ""
) -> Row | None:
    """Return the first minus the second, paired over problems and the seeds that both have; None without such seeds."""
    seeds = tuple(seed for seed in first.policies if seed in second.policies)
    if not seeds:
        return None
    name = name or difference_name(record.titles[first.arm], record.titles[second.arm])
    policies = ", ".join(sorted({first.policies[seed].label for seed in seeds}))
    arms, values = (first.arm, second.arm), record.differences(label, first, second, seeds)
    return effects_row(record, label, name, DIFFERENCE, [values], arms, policies, seeds, about)


def effects_row(
    record: StudyRecord, label: str, name: str, kind: str, values: Sequence[Mapping[str, Floats]],
    arms: tuple[str, ...], policy: str, seeds: tuple[int, ...], about: str = "",
) -> Row | None:  # fmt: skip
    """Return a row from values by metric, shape [seeds, problems], of one problem set or of several to average over.

    It has the metrics that every set has; None where there is none.
    """
    metrics = [metric for metric in values[0] if all(metric in of_set for of_set in values)]
    if not metrics:
        return None
    tables = [np.stack([of_set[metric] for metric in metrics]) for of_set in values]
    within = (-1.0 if kind == DIFFERENCE else 0.0, 1.0)
    cells = dict(zip(metrics, crossed_effects(*tables, within=within, seed=record.resampling), strict=True))
    return Row(label, name, kind, cells, sum(table.shape[2] for table in tables), arms, policy, seeds, about)


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
    name = difference_name(record.titles[record.main], _best_name(record))
    end, best = record.final_side(label, record.main), _best(record, label)
    return difference_row(record, label, end, best, name, f"against {_choice(record)}")


def by_step(record: StudyRecord) -> Steps:
    """Return every evaluated policy's values over the seeds."""
    return {label: {arm: _path(record, label, arm) for arm in record.titles} for label in record.sets}


def headline_cards(rows: Iterable[Row]) -> list[dict[str, object]]:
    """Return what the head of a page shows of some differences: avg@n and the pass@k of the greatest k."""
    return [
        {"set": row.set, "metric": metric, "cell": row.cells[metric], "seeds": len(row.seeds)}
        for row in rows
        for metric in headline_metrics(row.cells)
    ]


def rows_table(name: str, rows: Iterable[Row], *, by_seed: bool = True) -> Table:
    """Return rows in long form, for CSV; `by_seed` adds what several seeds say each and together."""
    columns: tuple[str, ...] = ("set", "row", "kind", "policy", "metric", "value", "low", "high", "problems")
    more = ("crossed_low", "crossed_high", "seeds_low", "seeds_high", "seeds", "by_seed", "about")
    long = [
        (row.set, row.name, row.kind, row.policy, metric, one.value, one.low, one.high, row.problems,
         *(one.crossed or (None, None)), *(one.seeds or (None, None)), " ".join(map(str, row.seeds)),
         " ".join(f"{value:.6f}" for value in one.by_seed), row.about)
        for row in rows for metric, one in row.cells.items()
    ]  # fmt: skip
    columns = (*columns, *more) if by_seed else columns
    return Table(name, columns, tuple(line[: len(columns)] for line in long))


def values_table(record: StudyRecord) -> Table:
    """Return every value that the study rests on: one row a seed, arm, set, checkpoint and metric."""
    rows = [
        (seed, arm, label, policy.label, policy.kind, policy.step, metric, value)
        for label in record.sets
        for arm in record.titles
        for seed in record.seeds
        for policy in record.checkpoints(label, arm, seed)
        for metric, value in record.means(label, arm, seed, policy).items()
    ]
    return Table("study", ("seed", "arm", "set", "checkpoint", "kind", "step", "metric", "value"), tuple(rows))


def _present(rows: Iterable[Row | None]) -> list[Row]:
    return [row for row in rows if row]


def _policies(record: StudyRecord, label: str) -> list[Row]:
    bases = [base for arm in record.titles if (base := record.at(label, arm, BASE)).policies]
    rows = [policy_row(record, label, bases[0], "base")] if bases else []
    for arm, title in record.titles.items():
        rows.append(policy_row(record, label, record.final_side(label, arm), title))
        if arm == record.reference:
            about = f"{_choice(record)}{f'; {BIASED}' if label == chosen_on(record)[0] else ''}"
            rows.append(policy_row(record, label, _best(record, label), _best_name(record), about))
    return _present(rows)


def _differences(record: StudyRecord, label: str) -> list[Row]:
    main = record.main
    ours, theirs = (record.final_side(label, arm) for arm in record.pair)
    rows = [difference_row(record, label, ours, theirs)]
    rows += [difference_row(record, label, record.final_side(label, arm), theirs) for arm in record.ablations]
    rows.append(against_best(record, label))
    name = difference_name(record.titles[main], "base")
    return _present([*rows, difference_row(record, label, ours, record.at(label, main, BASE), name)])


def _by_iteration(record: StudyRecord, label: str) -> list[Row]:
    """Return what each iteration of the main arm ends with minus the reference at equal RL steps."""
    main, reference = record.pair
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
    arm = record.reference
    chosen: dict[int, Policy] = {}
    for seed in record.seeds:
        means = {
            policy: record.means(judge, arm, seed, policy)[metric]
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
    title = record.titles[record.reference]
    return f"{title}, {'best checkpoint in hindsight' if in_hindsight else 'early stopping'}"


def _path(record: StudyRecord, label: str, arm: str) -> dict[Policy, Row]:
    title = record.titles[arm]
    rows = {one: policy_row(record, label, record.at(label, arm, one), title) for one in record.policies(label, arm)}
    return {policy: row for policy, row in rows.items() if row}
