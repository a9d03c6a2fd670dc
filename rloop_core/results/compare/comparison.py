"""Compare an RLoop run with its control or an ablation: one HTML file, a PNG and a CSV of every figure and table."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rloop_core.errors import StoreError
from rloop_core.results.analysis.transitions import SolvedRule
from rloop_core.results.compare.arms import Arm, read_arms
from rloop_core.results.compare.comparability import method_notes, objections, refuse, version_notes
from rloop_core.results.compare.compute import Compute, compute
from rloop_core.results.compare.dynamics import SetDynamics, dynamics
from rloop_core.results.compare.similarity import Unit
from rloop_core.results.compare.table import TableOne, table_one
from rloop_core.results.compare.trajectories import Cases, collect_cases
from rloop_core.results.report.lineage import Lineage, lineage_of
from rloop_core.results.report.selection import Selected, read_selected
from rloop_core.results.run_record import ledgers, read_run
from rloop_core.store import Store

HTML_FILE = "compare.html"


@dataclass(frozen=True)
class Comparison:
    """Everything that the page says, figures apart.

    Attributes:
        arms: RLoop, then what it is compared with.
        rule: What counts as solved.
        seed: Of the bootstrap, and of the problems drawn for similarity.
        objections: Why the arms are not comparable; empty unless the comparison was forced.
        table: Table 1.
        selected: The checkpoint that each arm's config chooses, if it chooses one.
        dynamics: Learning, forgetting, similarity and histories, by set.
        compute: What each arm cost, and whether that is equal.
        ledgers: Each arm's filter reports, by iteration.
        cases: Trajectories of both final policies side by side.
        lineages: Where each arm's last policy comes from.
        notes: What is missing, and how to get it.
    """

    arms: tuple[Arm, Arm]
    rule: str
    seed: int
    objections: list[str]
    table: TableOne
    selected: tuple[Selected | None, Selected | None]
    dynamics: list[SetDynamics]
    compute: Compute
    ledgers: tuple[dict[int, dict[str, Any]], ...]
    cases: Cases
    lineages: tuple[Lineage, Lineage]
    notes: list[str] = field(default_factory=list)


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
    similarity_unit: Unit = "words",
    seed: int | None = None,
    force: bool = False,
) -> tuple[Path, Comparison]:
    """Compare two runs of a store; returns the HTML file's path, and what it shows.

    Args:
        store: The object store.
        run: The RLoop run.
        vanilla: Its control, or another RLoop run whose method alone differs.
        out: Folder; None takes `comparison_folder`.
        cache: Folder for copies of files of remote stores.
        solved: `any`, `majority` or `at-least-M`.
        similarity_unit: `words` or `tokens`.
        seed: Of the bootstrap; None takes the run's.
        force: Compare arms that are not comparable, and say so on the page.

    Raises:
        ConfigError: The arms are not comparable, or there is no such rule.
        StoreError: There is no such run, or the folder cannot be written.
    """
    from rloop_core.results.compare.files import draw, write_files
    from rloop_core.results.compare.page import render

    rule = SolvedRule(solved)
    found = compare_runs(store, run, vanilla, cache, rule, seed, similarity_unit=similarity_unit, force=force)
    out = out or comparison_folder(store, run, vanilla)
    page = out / HTML_FILE
    try:
        out.mkdir(parents=True, exist_ok=True)  # before the figures, so that a bad folder is known at once
        figures = draw(found)
        write_files(found, figures, out)
        page.write_text(render(found, figures), encoding="utf-8")
    except OSError as error:
        fix = "name a writable folder with --out"
        raise StoreError(f"cannot be written: {error.strerror or error}", field=str(out), fix=fix) from error
    return page, found


def compare_runs(
    store: Store,
    run: str,
    vanilla: str,
    cache: Path,
    rule: SolvedRule,
    seed: int | None = None,
    *,
    similarity_unit: Unit = "words",
    force: bool = False,
) -> Comparison:
    """Read, check and analyse; what is missing is left out and noted.

    Raises:
        ConfigError: The arms are not comparable, and `force` is off.
        StoreError: There is no such run.
    """
    records = read_run(store, run, cache), read_run(store, vanilla, cache)
    against = objections(*records)
    if against and not force:
        raise refuse(*records, against)
    chosen = records[0].config.seed if seed is None else seed
    arms = read_arms(*records)
    table = table_one(*arms, chosen)
    found = dynamics(*arms, rule, chosen, similarity_unit)
    chosen_ones = read_selected(records[0]), read_selected(records[1])
    cost = compute(arms)
    cases = collect_cases(*arms, rule)
    lineages = lineage_of(records[0]), lineage_of(records[1])
    filtered = tuple(ledgers(one) for one in records)
    notes = [note if note.startswith(one.name) else f"{one.name}: {note}" for one in records for note in one.notes]
    if not table.blocks:
        notes.append("The arms share no evaluated problem set, so there is no Table 1.")
    notes += [
        *method_notes(*records),
        *version_notes(*records),
        *table.notes,
        *(note for one in found for note in one.notes),
    ]
    return Comparison(
        arms=arms,
        rule=rule.name,
        seed=chosen,
        objections=against,
        table=table,
        selected=chosen_ones,
        dynamics=found,
        compute=cost,
        ledgers=filtered,
        cases=cases,
        lineages=lineages,
        notes=list(dict.fromkeys(notes)),
    )
