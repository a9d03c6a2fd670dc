"""Compare an RLoop run with its control or an ablation: Table 1, and all else that the page says, figures apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from rloop_core.errors import ConfigError, RLoopError
from rloop_core.evaluation.metrics import Floats, metrics_of
from rloop_core.results.analysis.transitions import SolvedRule
from rloop_core.results.compare.trajectories import Cases, collect_cases
from rloop_core.results.compare.transitions import SetTransitions, Unit, set_transitions
from rloop_core.results.report.lineage import Lineage, lineage_of
from rloop_core.results.run_reader import ledgers, read_run
from rloop_core.results.selection import Selected, read_selected
from rloop_core.results.study.arms import Arm, Checkpoint, read_arms, shared_sets
from rloop_core.results.study.comparability import method_notes, reasons_against, version_notes
from rloop_core.results.study.compute import compute
from rloop_core.results.study.record import BASE, Policy, Side, StudyRecord
from rloop_core.results.study.table import Steps, effects_row, rows_table
from rloop_core.results.tables import DIFFERENCE, POLICY, MetricTable, Row, Table, difference_name
from rloop_core.store import Store

AVERAGE = "Avg"
_MEAN = (
    "The mean of the sets' values: every set counts alike, whatever its size. Problems are resampled within each set."
)
Sides = dict[str, Side]


@dataclass
class TableOne:
    """The paper's Table 1.

    Attributes:
        blocks: A block a set, then the mean over sets where there is more than one.
        notes: What could not be computed, and why.
    """

    blocks: list[MetricTable] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def row(self, label: str, name: str) -> Row | None:
        """Return one row of one block."""
        rows = [row for block in self.blocks if block.label == label for row in block.rows]
        return next((row for row in rows if row.name == name), None)

    def to_table(self) -> Table:
        """Return the table in long form, for CSV."""
        return rows_table("table-1", [row for block in self.blocks for row in block.rows], by_seed=False)


@dataclass(frozen=True)
class Comparison:
    """Two arms and what they show.

    Attributes:
        arms: RLoop, then what it is compared with.
        record: The two as a study of one seed.
        rule: What counts as solved.
        not_comparable: Why the arms are not comparable; empty unless the comparison was forced.
        table: Table 1.
        selected: The checkpoint that each arm's config chooses, if it chooses one.
        transitions: Learning, forgetting, similarity and histories, by set.
        compute: What each arm cost.
        equality: Which of the costs are equal and which not, a sentence each.
        ledgers: Each arm's filter reports, by iteration.
        cases: Trajectories of both final policies side by side.
        lineages: Where each arm's last policy comes from.
        notes: What is missing, and how to get it.
    """

    arms: tuple[Arm, Arm]
    record: StudyRecord
    rule: str
    not_comparable: list[str]
    table: TableOne
    selected: tuple[Selected | None, ...]
    transitions: list[SetTransitions]
    compute: Table
    equality: list[str]
    ledgers: tuple[dict[int, dict[str, Any]], ...]
    cases: Cases
    lineages: tuple[Lineage, ...]
    notes: list[str]


def compare_runs(
    store: Store,
    run: str,
    vanilla: str,
    cache: Path,
    *,
    solved: str = "any",
    similarity_unit: Unit = "words",
    seed: int | None = None,
    force: bool = False,
) -> Comparison:
    """Read two runs of a store, check them and analyse them; what is missing is left out and noted.

    Args:
        store: The object store.
        run: The RLoop run.
        vanilla: Its control, or another RLoop run whose method alone differs.
        cache: Folder for copies of files of remote stores.
        solved: `any`, `majority` or `at-least-M`.
        similarity_unit: `words` or `tokens`.
        seed: Of the bootstrap; None takes the run's.
        force: Compare arms that are not comparable, and say so on the page.

    Raises:
        ConfigError: The arms are not comparable, or there is no such rule.
        StoreError: There is no such run.
    """
    rule = SolvedRule(solved)
    runs = read_run(store, run, cache), read_run(store, vanilla, cache)
    first = runs[0].config.arm
    order = [] if first == "rloop" else [f"{run} is of arm {first}: the first run must be of arm rloop"]
    against = [*order, *reasons_against(*runs)]
    if against and not force:
        fix = "make the control with `rloop run --arm vanilla-rl` and the same config, or --force to compare anyhow"
        what = f"the arms are not comparable: {'; '.join(against)}"
        raise ConfigError(what, field=f"{run}, {vanilla}", fix=fix)
    arms = read_arms(*runs)
    record = _one_seed(arms, runs[0].config.seed if seed is None else seed)
    table, changes = table_one(record), set_transitions(record, rule, similarity_unit)
    costs, equality = compute(arms)
    selected, cases = tuple(map(read_selected, runs)), collect_cases(*arms, rule)
    lineages, reports = tuple(map(lineage_of, runs)), tuple(map(ledgers, runs))
    # All that is read by now has left its notes.
    notes = [note if note.startswith(one.name) else f"{one.name}: {note}" for one in runs for note in one.notes]
    notes += [] if table.blocks else ["The arms share no evaluated problem set, so there is no Table 1."]
    notes += [*method_notes(*runs), *version_notes(*runs), *table.notes]
    notes += [note for of_set in changes for note in of_set.notes]
    return Comparison(
        arms=arms,
        record=record,
        rule=rule.name,
        not_comparable=against,
        table=table,
        selected=selected,
        transitions=changes,
        compute=costs,
        equality=equality,
        ledgers=reports,
        cases=cases,
        lineages=lineages,
        notes=list(dict.fromkeys(notes)),
    )


def _one_seed(arms: tuple[Arm, Arm], seed: int) -> StudyRecord:
    """Return two arms as a study of one seed, on the sets on which both are evaluated; `seed` is of the bootstrap."""
    (ours, theirs), place = arms, arms[0].run.config.seed
    titles, runs = {arm.title: arm.title for arm in arms}, {(arm.title, place): arm for arm in arms}
    record = StudyRecord(ours.title, theirs.title, titles, (place,), runs, resampling=seed, under_way=True)
    record.sets = shared_sets(ours, theirs)
    return record


def table_one(record: StudyRecord) -> TableOne:
    """Build the table from the stored samples."""
    table = TableOne()
    by_set = {label: _sides(record, label) for label in record.sets}
    for label, sides in by_set.items():
        _add_block(table, record, label, {label: sides})
    if len(by_set) > 1:
        _add_block(table, record, AVERAGE, by_set)
    return table


def _sides(record: StudyRecord, label: str) -> Sides:
    """Return the base, and what the reference and the main arm end with, of those that are evaluated."""
    bases = [base for arm in record.pair if (base := record.at(label, arm, BASE)).policies]
    ends = {arm: record.final_side(label, arm) for arm in reversed(record.pair)}
    sides = {"base": bases[0], **ends} if bases else ends
    return {name: side for name, side in sides.items() if side.policies}


def _problem_ids(record: StudyRecord, label: str, side: Side) -> tuple[str, ...]:
    (seed,) = record.seeds
    return record.evaluated[label, side.arm, seed][side.policies[seed]].outcomes.problem_ids


def _add_block(
    table: TableOne,
    record: StudyRecord,
    title: str,
    by_set: Mapping[str, Sides],
    left_out: frozenset[str] = frozenset(),
) -> None:
    """Add a row for each policy and for each later one minus an earlier one; the paper's claim comes last.

    Of several sets the rows are means over the sets, of the policies and metrics that every set has.
    """
    names = [name for name in next(iter(by_set.values())) if all(name in sides for sides in by_set.values())]
    rows: list[Row | None] = []

    def kept(label: str, side: Side, values: Mapping[str, Floats]) -> dict[str, Floats]:
        columns = np.array([problem not in left_out for problem in _problem_ids(record, label, side)], dtype=bool)
        return {metric: own[:, columns] for metric, own in values.items()}

    for name in names:
        sides = [(label, of_set[name]) for label, of_set in by_set.items()]
        values = [kept(label, side, record.values(label, side, record.seeds)) for label, side in sides]
        policy = sides[0][1].policies[record.seeds[0]].label if len(sides) == 1 else ""
        rows.append(effects_row(record, title, name, POLICY, values, (name,), policy, record.seeds))
    for second, first in combinations(names, 2):
        try:
            values = [
                kept(label, of_set[first], record.differences(label, of_set[first], of_set[second], record.seeds))
                for label, of_set in by_set.items()
            ]
        except RLoopError as error:
            table.notes.append(f"{first} and {second} cannot be compared on {title}: {error}")
            continue
        name = difference_name(first, second)
        rows.append(effects_row(record, title, name, DIFFERENCE, values, (first, second), "", record.seeds))
    present = [row for row in rows if row]
    if present:
        basis = _MEAN if title == AVERAGE else f"{present[0].problems:,} problems."
        table.blocks.append(MetricTable(title, present, basis))
        if not any(metric.startswith("avg@") for metric in present[0].cells):
            table.notes.append(f"{title} has no avg@n: the sets have different numbers of samples.")


def stored_rows(record: StudyRecord) -> Steps:
    """Return every policy's metrics with the intervals that its evaluation has stored."""

    def row(label: str, arm: str, policy: Policy, one: Checkpoint) -> Row:
        cells = metrics_of(one.summary)
        return Row(label, arm, POLICY, cells, len(one.outcomes), (arm,), policy.label, record.seeds)

    return {
        label: {
            arm: {policy: row(label, arm, policy, one) for policy, one in record.checkpoints(label, arm, seed).items()}
            for arm, seed in record.arms
        }
        for label in record.sets
    }
