"""Table 1: base, RL and RLoop on every problem set, with intervals and paired differences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from rloop_core.errors import RLoopError
from rloop_core.evaluation.bootstrap import intervals_over_sets
from rloop_core.evaluation.metrics import Floats
from rloop_core.evaluation.outcomes import compare, problem_values, summarise
from rloop_core.results.compare.arms import Arm, Checkpoint, shared_sets
from rloop_core.results.tables import Table

AVERAGE = "Avg"
Cells = dict[str, dict[str, float]]


@dataclass(frozen=True)
class Row:
    """One policy, or the difference of two, on one set; or the mean over sets.

    Attributes:
        name: "base", "RL", "RLoop", "RLoop - RL".
        policy: Which policy that is; empty for a difference.
        cells: Metric to {value, low, high}; avg@n first, then pass@k with rising k, then majority@n.
        difference: Whether this is a paired difference.
    """

    name: str
    policy: str
    cells: Cells
    difference: bool = False


@dataclass(frozen=True)
class Block:
    """The rows of one problem set, or of the mean over sets."""

    label: str
    problems: int
    rows: list[Row]


@dataclass
class TableOne:
    """The paper's Table 1.

    Attributes:
        blocks: A block a set, then the mean over sets where there is more than one.
        notes: What could not be computed, and why.
    """

    blocks: list[Block] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def row(self, label: str, name: str) -> Row | None:
        """One row of one block."""
        rows = [row for block in self.blocks if block.label == label for row in block.rows]
        return next((row for row in rows if row.name == name), None)

    def to_table(self) -> Table:
        """In long form, for CSV."""
        columns = ("set", "row", "policy", "metric", "value", "low", "high", "difference", "problems")
        rows = [
            (block.label, row.name, row.policy, metric, one["value"], one["low"], one["high"], row.difference,
             block.problems)
            for block in self.blocks for row in block.rows for metric, one in row.cells.items()
        ]  # fmt: skip
        return Table("table-1", columns, tuple(rows))


def difference_name(first: str, second: str) -> str:
    """What a difference's row is called."""
    return f"{first} \N{MINUS SIGN} {second}"


def table_one(ours: Arm, theirs: Arm, seed: int) -> TableOne:
    """Build the table from the stored samples, with each set's own k of pass@k as RLoop's config has them.

    Args:
        ours: RLoop.
        theirs: Vanilla RL.
        seed: Of the bootstrap.
    """
    table = TableOne()
    for label in shared_sets(ours, theirs):
        wanted = _wanted(ours, label)
        policies = _policies(ours, theirs, label)
        known = ours.run.data.known(label) if ours.run.data else frozenset()
        _add(table, label, policies, wanted, seed)
        if known and not any(known.issuperset(one.outcomes.problem_ids) for one in policies.values()):
            count = len(known.intersection(next(iter(policies.values())).outcomes.problem_ids))
            _add(table, f"{label}, without {count} contaminated", policies, wanted, seed, known)
    _add_average(table, ours, theirs, seed)
    return table


def _wanted(ours: Arm, label: str) -> list[int]:
    """The k of pass@k on a set; 1 is left out, for pass@1 is avg@n."""
    return sorted({k for k in ours.run.config.evaluate.of(label).k if k > 1})


def _policies(ours: Arm, theirs: Arm, label: str) -> dict[str, Checkpoint]:
    base = ours.base(label) or theirs.base(label)
    found = {"base": base, theirs.title: theirs.final(label), ours.title: ours.final(label)}
    return {name: one for name, one in found.items() if one is not None}


def _pairs(names: Sequence[str]) -> list[tuple[str, str]]:
    """Later minus earlier, what the paper claims last: RL - base, RLoop - base, RLoop - RL."""
    return [(names[j], names[i]) for i in range(len(names)) for j in range(i + 1, len(names))]


def _add(
    table: TableOne,
    label: str,
    policies: dict[str, Checkpoint],
    ks: Sequence[int],
    seed: int,
    left_out: frozenset[str] = frozenset(),
) -> None:
    outcomes = {name: one.outcomes.without(left_out) if left_out else one.outcomes for name, one in policies.items()}
    rows = []
    for name, one in outcomes.items():
        possible = [k for k in ks if k <= one.n.min()]
        summary = summarise(one, possible, seed=seed)
        cells = {metric: value for metric, value in summary.items() if isinstance(value, dict)}
        rows.append(Row(name, policies[name].label, cells))
    for first, second in _pairs(list(outcomes)):
        possible = [k for k in ks if k <= min(outcomes[first].n.min(), outcomes[second].n.min())]
        try:
            found = compare(outcomes[first], outcomes[second], possible, seed=seed)
        except RLoopError as error:
            table.notes.append(f"{first} and {second} cannot be compared on {label}: {error}")
            continue
        cells = {name: {key: one[key] for key in ("value", "low", "high")} for name, one in found.items()
                 if isinstance(one, dict)}  # fmt: skip
        rows.append(Row(difference_name(first, second), "", cells, difference=True))
    table.blocks.append(Block(label, len(next(iter(outcomes.values()))), rows))


def _add_average(table: TableOne, ours: Arm, theirs: Arm, seed: int) -> None:
    """The mean of the sets' values; only policies and metrics that every set has."""
    labels = shared_sets(ours, theirs)
    if len(labels) < 2:
        return
    sets = [_policies(ours, theirs, label) for label in labels]
    names = [name for name in ("base", theirs.title, ours.title) if all(name in one for one in sets)]
    if not names:
        return
    shared = set.intersection(*(set(_wanted(ours, label)) for label in labels))
    possible = [k for k in sorted(shared) if all(k <= one[name].outcomes.n.min() for one in sets for name in names)]
    values = {name: [dict(problem_values(one[name].outcomes, possible)) for one in sets] for name in names}
    metrics = [metric for metric in values[names[0]][0] if all(metric in one for name in names for one in values[name])]
    if not any(metric.startswith("avg@") for metric in metrics):
        table.notes.append(f"{AVERAGE} has no avg@n: the sets have different numbers of samples.")
    if not metrics:
        return
    stacked = {name: [np.stack([one[metric] for metric in metrics]) for one in values[name]] for name in names}
    rows = [Row(name, "", _average(stacked[name], metrics, seed)) for name in names]
    for first, second in _pairs(names):
        if all(one[first].outcomes.problem_ids == one[second].outcomes.problem_ids for one in sets):
            pairs = [a - b for a, b in zip(stacked[first], stacked[second], strict=True)]
            rows.append(Row(difference_name(first, second), "", _average(pairs, metrics, seed), difference=True))
    problems = sum(len(next(iter(one.values())).outcomes) for one in sets)
    table.blocks.append(Block(AVERAGE, problems, rows))


def _average(sets: list[Floats], metrics: Sequence[str], seed: int) -> Cells:
    found = intervals_over_sets(sets, seed=seed)
    return {metric: one.to_dict() for metric, one in zip(metrics, found, strict=True)}
