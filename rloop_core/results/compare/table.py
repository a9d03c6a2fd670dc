"""Table 1: base, RL and RLoop on every problem set, with intervals and paired differences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np

from rloop_core.errors import RLoopError
from rloop_core.evaluation.bootstrap import intervals_over_sets
from rloop_core.evaluation.metrics import Floats
from rloop_core.evaluation.outcomes import compare, problem_values, summarise
from rloop_core.results.compare.arms import Arm, Checkpoint, shared_sets
from rloop_core.results.tables import Table

AVERAGE = "Avg"
Cells = dict[str, dict[str, float]]
Policies = dict[str, Checkpoint]


@dataclass(frozen=True)
class Row:
    """One policy, or the difference of two, on one set; or the mean over sets.

    Attributes:
        name: "base", "RL", "RLoop", "RLoop - RL".
        policy: Label of the policy; empty for a difference.
        cells: Metric to {value, low, high}; avg@n first, then pass@k with rising k, then majority@n.
        kind: `policy`, or `difference` for a paired difference.
    """

    name: str
    policy: str
    cells: Cells
    kind: str = "policy"


@dataclass(frozen=True)
class Block:
    """The rows of one problem set, or of the mean over sets."""

    label: str
    problems: int
    rows: list[Row]

    @property
    def metrics(self) -> list[str]:
        """Names of the metrics that any row has."""
        return list(dict.fromkeys(metric for row in self.rows for metric in row.cells))


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
        """Return one row of one block."""
        rows = [row for block in self.blocks if block.label == label for row in block.rows]
        return next((row for row in rows if row.name == name), None)

    def to_table(self) -> Table:
        """Return the table in long form, for CSV."""
        columns = ("set", "row", "policy", "metric", "value", "low", "high", "difference", "problems")
        rows = [
            (block.label, row.name, row.policy, metric, cell["value"], cell["low"], cell["high"],
             row.kind == "difference", block.problems)
            for block in self.blocks for row in block.rows for metric, cell in row.cells.items()
        ]  # fmt: skip
        return Table("table-1", columns, tuple(rows))


def difference_name(first: str, second: str) -> str:
    """Return the name of a difference's row."""
    return f"{first} \N{MINUS SIGN} {second}"


def table_one(ours: Arm, theirs: Arm, seed: int) -> TableOne:
    """Build the table from the stored samples, with each set's own k of pass@k as RLoop's config has them.

    Args:
        ours: RLoop.
        theirs: Vanilla RL.
        seed: Of the bootstrap.
    """
    table = TableOne()
    policies = {label: _policies(ours, theirs, label) for label in shared_sets(ours, theirs)}
    # 1 is left out, for pass@1 is avg@n.
    wanted = {label: sorted({k for k in ours.run.config.evaluate.of(label).k if k > 1}) for label in policies}
    for label, of_set in policies.items():
        _add_set(table, label, of_set, wanted[label], seed)
        known = ours.run.data.known(label) if ours.run.data else frozenset()
        if known and not any(known.issuperset(policy.outcomes.problem_ids) for policy in of_set.values()):
            count = len(known.intersection(next(iter(of_set.values())).outcomes.problem_ids))
            _add_set(table, f"{label}, without {count} contaminated", of_set, wanted[label], seed, known)
    if len(policies) > 1:
        shared = set.intersection(*map(set, wanted.values()))
        names = [name for name in ("base", theirs.title, ours.title) if all(name in one for one in policies.values())]
        _add_average(table, list(policies.values()), names, sorted(shared), seed)
    return table


def _policies(ours: Arm, theirs: Arm, label: str) -> Policies:
    base = ours.base(label) or theirs.base(label)
    policies = {"base": base, theirs.title: theirs.final(label), ours.title: ours.final(label)}
    return {name: policy for name, policy in policies.items() if policy is not None}


def _add_set(
    table: TableOne,
    label: str,
    policies: Policies,
    ks: Sequence[int],
    seed: int,
    left_out: frozenset[str] = frozenset(),
) -> None:
    """Add a row for each policy and for each later one minus an earlier one; the paper's claim comes last."""
    outcomes = {
        name: policy.outcomes.without(left_out) if left_out else policy.outcomes for name, policy in policies.items()
    }
    rows = []
    for name, of_policy in outcomes.items():
        summary = summarise(of_policy, [k for k in ks if k <= of_policy.n.min()], seed=seed)
        cells = {metric: value for metric, value in summary.items() if isinstance(value, dict)}
        rows.append(Row(name, policies[name].label, cells))
    for second, first in combinations(outcomes, 2):
        possible = [k for k in ks if k <= min(outcomes[first].n.min(), outcomes[second].n.min())]
        try:
            differences = compare(outcomes[first], outcomes[second], possible, seed=seed)
        except RLoopError as error:
            table.notes.append(f"{first} and {second} cannot be compared on {label}: {error}")
            continue
        cells = {name: {key: cell[key] for key in ("value", "low", "high")} for name, cell in differences.items()
                 if isinstance(cell, dict)}  # fmt: skip
        rows.append(Row(difference_name(first, second), "", cells, "difference"))
    table.blocks.append(Block(label, len(next(iter(outcomes.values()))), rows))


def _add_average(table: TableOne, sets: list[Policies], names: list[str], ks: Sequence[int], seed: int) -> None:
    """Add the mean of the sets' values, of the metrics that every set has."""
    if not names:
        return
    possible = [k for k in ks if all(k <= of_set[name].outcomes.n.min() for of_set in sets for name in names)]
    values = {name: [problem_values(of_set[name].outcomes, possible) for of_set in sets] for name in names}
    every = [of_set for by_set in values.values() for of_set in by_set]
    metrics = [metric for metric in every[0] if all(metric in of_set for of_set in every)]
    if not any(metric.startswith("avg@") for metric in metrics):
        table.notes.append(f"{AVERAGE} has no avg@n: the sets have different numbers of samples.")
    if not metrics:
        return

    def cells(tables: list[Floats]) -> Cells:
        means = intervals_over_sets(tables, seed=seed)
        return {metric: mean.to_dict() for metric, mean in zip(metrics, means, strict=True)}

    stacked = {
        name: [np.stack([of_set[metric] for metric in metrics]) for of_set in by_set] for name, by_set in values.items()
    }
    rows = [Row(name, "", cells(tables)) for name, tables in stacked.items()]
    for second, first in combinations(names, 2):
        if all(of_set[first].outcomes.problem_ids == of_set[second].outcomes.problem_ids for of_set in sets):
            differences = [a - b for a, b in zip(stacked[first], stacked[second], strict=True)]
            rows.append(Row(difference_name(first, second), "", cells(differences), "difference"))
    problems = sum(len(next(iter(of_set.values())).outcomes) for of_set in sets)
    table.blocks.append(Block(AVERAGE, problems, rows))
