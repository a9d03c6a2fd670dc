"""What a comparison leaves beside its page: every figure as PNG and CSV, every table as CSV, the lineage as JSON."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rloop_core.results.compare import figures as arms_figures
from rloop_core.results.compare import iterations as arms_iterations
from rloop_core.results.compare import matrices as arms_matrices
from rloop_core.results.compare import overfitting as arms_overfitting
from rloop_core.results.compare.dynamics import SetDynamics
from rloop_core.results.plotting import Picture
from rloop_core.results.report.figures import funnel
from rloop_core.results.report.lineage import artifact_table
from rloop_core.results.report.trajectories import EXPERTS_NAME, write_expert_keys
from rloop_core.results.tables import Table

if TYPE_CHECKING:
    from rloop_core.results.compare.comparison import Comparison


@dataclass(frozen=True)
class Figures:
    """What is drawn: over all sets, of each set by its label, and how each expert set came about."""

    overall: list[Picture]
    by_set: dict[str, list[Picture]]
    experts: list[Picture]

    @property
    def every(self) -> list[Picture]:
        """All of them, in the page's order."""
        return [*self.overall, *(one for own in self.by_set.values() for one in own), *self.experts]


def write_files(found: Comparison, figures: Figures, out: Path) -> None:
    """Write all of it into a folder that exists."""
    for picture in figures.every:
        picture.write(out, "")
    tables = (
        found.table.to_table(),
        histories_table(found.dynamics),
        blocks_table(found),
        found.compute.table,
        lineage_table(found),
    )
    for table in tables:
        if table.rows:
            (out / f"{table.name}.csv").write_text(table.to_csv(), encoding="utf-8")
    parts = ",\n".join(one.to_json() for one in found.lineages)
    (out / "lineage.json").write_text(f"[{parts}]\n", encoding="utf-8")
    refined = {arm.run.name: arm.run for arm in found.arms if arm.run.config.arm == "rloop"}
    write_expert_keys(refined.values(), out / EXPERTS_NAME)


def draw(found: Comparison) -> Figures:
    """Every figure that there are numbers for."""
    drawn = (
        arms_overfitting.overfitting(found.arms),
        arms_figures.reward(found.arms),
        arms_iterations.by_iteration(found.arms),
        arms_figures.curves(found.arms),
        arms_figures.entropy(found.arms),
        arms_figures.gradients(found.arms),
    )
    by_set = {one.label: _set_pictures(one, place) for place, one in enumerate(found.dynamics)}
    return Figures([one for one in drawn if one], by_set, _funnels(found))


def _funnels(found: Comparison) -> list[Picture]:
    """The filter's ledger of each arm that has a filter."""
    drawn = []
    for place, (arm, ledgers) in enumerate(zip(found.arms, found.ledgers, strict=True)):
        own = funnel(ledgers)
        if own:
            drawn.append(replace(own, name=f"arm-{place:02d}-filter", title=f"{arm.title}: {own.title}"))
    return drawn


def _set_pictures(one: SetDynamics, place: int) -> list[Picture]:
    drawn = (
        arms_matrices.transition_matrices(one, f"set-{place:02d}-figure-2-transitions"),
        arms_matrices.differential_matrix(one, f"set-{place:02d}-figure-5a-differential"),
        arms_matrices.similarity_curves(one, f"set-{place:02d}-figure-5b-similarity"),
    )
    return [picture for picture in drawn if picture]


def histories_table(found: list[SetDynamics]) -> Table:
    """One row a set, arm and problem."""
    columns = ("set", "arm", "problem_id", "kind", "history", "correct")
    rows = [
        (one.label, arm.title, told.problem_id, told.kind, told.told, " ".join(map(str, told.correct)))
        for one in found
        for arm in one.arms
        for told in arm.histories
    ]
    return Table("histories", columns, tuple(rows))


def blocks_table(found: Comparison) -> Table:
    """Mean forgetting within and across iterations, beside what chance gives, one row a set and block."""
    ours, theirs = (arm.title for arm in found.arms)
    columns = ("set", "block", theirs, f"{theirs} by chance", ours, f"{ours} by chance", "difference", "low", "high")
    rows = []
    for one in found.dynamics:
        blocks = one.blocks
        for place, name in enumerate(("intra", "inter")):
            if blocks is None or name not in blocks.intervals:
                continue
            between = blocks.intervals[name]
            rows.append((one.label, name, blocks.found.vanilla[place], blocks.chance.vanilla[place],
                         blocks.found.rloop[place], blocks.chance.rloop[place], between.value, between.low,
                         between.high))  # fmt: skip
    return Table("forgetting", columns, tuple(rows))


def lineage_table(found: Comparison) -> Table:
    """Every artifact of both arms, one row each."""
    tables = {arm.run.name: artifact_table(arm.run) for arm in found.arms}
    columns = next(iter(tables.values())).columns
    rows = [(run, *row) for run, table in tables.items() for row in table.rows]
    return Table("lineage", ("run", *columns), tuple(rows))
