"""Compare an RLoop run with its vanilla-RL control: one HTML file, and a PNG and a CSV of every figure and table."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from rloop_core.analysis.solved import SolvedRule
from rloop_core.errors import StoreError
from rloop_core.report import arms_figures, arms_matrices
from rloop_core.report.arms import Arm, read_arms
from rloop_core.report.arms_compute import compute_table
from rloop_core.report.arms_dynamics import SetDynamics, dynamics
from rloop_core.report.arms_fairness import check_comparable, objections, version_notes
from rloop_core.report.arms_table import TableOne, table_one
from rloop_core.report.canvas import Picture, Table
from rloop_core.report.reading import read_run
from rloop_core.store import Store

HTML_FILE = "compare.html"


@dataclass(frozen=True)
class Comparison:
    """Everything that the page says, figures apart.

    Attributes:
        arms: RLoop, then vanilla RL.
        rule: What counts as solved.
        seed: Of the bootstrap, and of the problems drawn for similarity.
        objections: Why the arms are not comparable; empty unless the comparison was forced.
        table: Table 1.
        dynamics: Learning, forgetting, similarity and histories, by set.
        compute: What each arm cost.
        notes: What is missing, and how to get it.
    """

    arms: tuple[Arm, Arm]
    rule: str
    seed: int
    objections: list[str]
    table: TableOne
    dynamics: list[SetDynamics]
    compute: Table
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Figures:
    """What is drawn: over all sets, and of each set by its label."""

    overall: list[Picture]
    by_set: dict[str, list[Picture]]


def comparison_folder(store: Store, run: str, vanilla: str) -> Path:
    """`<store>/<run>/compare-<vanilla>` in a local store, else `.rloop/reports/<run>+<vanilla>`."""
    if store.is_local:
        return store.local_path(f"{run}/compare-{vanilla}")
    return Path(".rloop/reports") / f"{run}+{vanilla}"


def write_comparison(
    store: Store,
    run: str,
    vanilla: str,
    out: Path | None,
    cache: Path,
    *,
    solved: str = "any",
    seed: int | None = None,
    force: bool = False,
) -> tuple[Path, Comparison]:
    """Compare two runs of a store; returns the HTML file's path, and what it shows.

    Args:
        store: The object store.
        run: The RLoop run.
        vanilla: Its control.
        out: Folder; None takes `comparison_folder`.
        cache: Folder for copies of files of remote stores.
        solved: `any`, `majority` or `at-least-M`.
        seed: Of the bootstrap; None takes the run's.
        force: Compare arms that are not comparable, and say so on the page.

    Raises:
        ConfigError: The arms are not comparable, or there is no such rule.
        StoreError: There is no such run, or the folder cannot be written.
    """
    from rloop_core.report.arms_page import render

    rule = SolvedRule(solved)
    found = compare_runs(store, run, vanilla, cache, rule, seed, force=force)
    out = out or comparison_folder(store, run, vanilla)
    page = out / HTML_FILE
    try:
        out.mkdir(parents=True, exist_ok=True)  # before the figures, so that a bad folder is known at once
        figures = draw(found)
        for picture in (*figures.overall, *(one for own in figures.by_set.values() for one in own)):
            picture.write(out, "")
        for table in (found.table.to_table(), histories_table(found.dynamics), blocks_table(found), found.compute):
            if table.rows:
                (out / f"{table.name}.csv").write_text(table.to_csv(), encoding="utf-8")
        page.write_text(render(found, figures), encoding="utf-8")
    except OSError as error:
        fix = "name a writable folder with --out"
        raise StoreError(f"cannot be written: {error.strerror or error}", field=str(out), fix=fix) from error
    return page, found


def compare_runs(
    store: Store, run: str, vanilla: str, cache: Path, rule: SolvedRule, seed: int | None = None, *, force: bool = False
) -> Comparison:
    """Read, check and analyse; what is missing is left out and noted.

    Raises:
        ConfigError: The arms are not comparable, and `force` is off.
        StoreError: There is no such run.
    """
    records = read_run(store, run, cache), read_run(store, vanilla, cache)
    if not force:
        check_comparable(*records)
    chosen = records[0].config.seed if seed is None else seed
    arms = read_arms(*records)
    table = table_one(*arms, chosen)
    found = dynamics(*arms, rule, chosen)
    notes = [note if note.startswith(one.name) else f"{one.name}: {note}" for one in records for note in one.notes]
    if not table.blocks:
        notes.append("The arms share no evaluated problem set, so there is no Table 1.")
    notes += [*version_notes(*records), *table.notes, *(note for one in found for note in one.notes)]
    return Comparison(
        arms=arms,
        rule=rule.name,
        seed=chosen,
        objections=objections(*records),
        table=table,
        dynamics=found,
        compute=compute_table(arms),
        notes=list(dict.fromkeys(notes)),
    )


def draw(found: Comparison) -> Figures:
    """Every figure that there are numbers for."""
    drawn = (arms_figures.curves(found.arms), arms_figures.reward(found.arms), arms_figures.stability(found.arms))
    by_set = {one.label: _set_pictures(one, place) for place, one in enumerate(found.dynamics)}
    return Figures([one for one in drawn if one], by_set)


def _set_pictures(one: SetDynamics, place: int) -> list[Picture]:
    drawn = (
        arms_matrices.transition_matrices(one, f"set-{place:02d}-transitions"),
        arms_matrices.differential_matrix(one, f"set-{place:02d}-differential"),
        arms_matrices.similarity_curves(one, f"set-{place:02d}-similarity"),
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
