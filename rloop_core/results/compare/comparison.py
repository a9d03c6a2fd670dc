"""Compare an RLoop run with its control or an ablation: everything that the page says, figures apart."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rloop_core.errors import ConfigError
from rloop_core.results.analysis.transitions import SolvedRule
from rloop_core.results.compare.table import TableOne, table_one
from rloop_core.results.compare.trajectories import Cases, collect_cases
from rloop_core.results.compare.transitions import SetTransitions, Unit, set_transitions
from rloop_core.results.report.lineage import Lineage, lineage_of
from rloop_core.results.run_record import ledgers, read_run
from rloop_core.results.selection import Selected, read_selected
from rloop_core.results.study.arms import Arm, read_arms, shared_sets
from rloop_core.results.study.comparability import method_notes, objections, version_notes
from rloop_core.results.study.compute import compute
from rloop_core.results.study.record import StudyRecord
from rloop_core.results.tables import Table
from rloop_core.store import Store


@dataclass(frozen=True)
class Comparison:
    """Two arms and what they show.

    Attributes:
        arms: RLoop, then what it is compared with.
        record: The two as a study of one seed.
        rule: What counts as solved.
        objections: Why the arms are not comparable; empty unless the comparison was forced.
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
    objections: list[str]
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
    against = objections(*runs)
    if against and not force:
        fix = "make the control with `rloop run --arm vanilla-rl` and the same config, or --force to compare anyhow"
        what = f"the arms are not comparable: {'; '.join(against)}"
        raise ConfigError(what, field=f"{run}, {vanilla}", fix=fix)
    arms = read_arms(*runs)
    record = _one_seed(arms, runs[0].config.seed if seed is None else seed)
    costs, equality = compute(arms)
    comparison = Comparison(
        arms=arms,
        record=record,
        rule=rule.name,
        objections=against,
        table=table_one(record),
        transitions=set_transitions(record, rule, similarity_unit),
        selected=tuple(map(read_selected, runs)),
        compute=costs,
        equality=equality,
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


def _one_seed(arms: tuple[Arm, Arm], seed: int) -> StudyRecord:
    """Return two arms as a study of one seed, on the sets on which both are evaluated; `seed` is of the bootstrap."""
    (ours, theirs), place = arms, arms[0].run.config.seed
    titles, runs = {arm.title: arm.title for arm in arms}, {(arm.title, place): arm for arm in arms}
    record = StudyRecord(ours.title, theirs.title, titles, (place,), runs, resampling=seed, under_way=True)
    record.sets = shared_sets(ours, theirs)
    return record
