"""Compare an RLoop run with its control or an ablation: everything that the page says, figures apart."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rloop_core.results.analysis.transitions import SolvedRule
from rloop_core.results.compare.arms import Arm, read_arms
from rloop_core.results.compare.comparability import method_notes, objections, refuse, version_notes
from rloop_core.results.compare.compute import Compute, compute
from rloop_core.results.compare.table import TableOne, table_one
from rloop_core.results.compare.trajectories import Cases, collect_cases
from rloop_core.results.compare.transitions import SetTransitions, Unit, set_transitions
from rloop_core.results.report.lineage import Lineage, lineage_of
from rloop_core.results.report.selection import Selected, read_selected
from rloop_core.results.run_record import ledgers, read_run
from rloop_core.store import Store


@dataclass(frozen=True)
class Comparison:
    """Two arms and what they show.

    Attributes:
        arms: RLoop, then what it is compared with.
        rule: What counts as solved.
        seed: Of the bootstrap, and of the problems drawn for similarity.
        objections: Why the arms are not comparable; empty unless the comparison was forced.
        table: Table 1.
        selected: The checkpoint that each arm's config chooses, if it chooses one.
        transitions: Learning, forgetting, similarity and histories, by set.
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
    selected: tuple[Selected | None, ...]
    transitions: list[SetTransitions]
    compute: Compute
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
    against = objections(*runs)
    if against and not force:
        raise refuse(*runs, against)
    seed = runs[0].config.seed if seed is None else seed
    arms = read_arms(*runs)
    comparison = Comparison(
        arms=arms,
        rule=rule.name,
        seed=seed,
        objections=against,
        table=table_one(*arms, seed),
        transitions=set_transitions(*arms, rule, seed, similarity_unit),
        selected=tuple(map(read_selected, runs)),
        compute=compute(arms),
        cases=collect_cases(*arms, rule),
        lineages=tuple(map(lineage_of, runs)),
        ledgers=tuple(map(ledgers, runs)),
        notes=[],
    )
    table = comparison.table
    # All that is read by now has left its notes.
    notes = [note if note.startswith(one.name) else f"{one.name}: {note}" for one in runs for note in one.notes]
    notes += [] if table.blocks else ["The arms share no evaluated problem set, so there is no Table 1."]
    notes += [*method_notes(*runs), *version_notes(*runs), *table.notes]
    notes += [note for of_set in comparison.transitions for note in of_set.notes]
    return replace(comparison, notes=list(dict.fromkeys(notes)))
