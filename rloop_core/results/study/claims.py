"""The paper's claims, with the sign that it claims, beside what this study found; what disagrees comes first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rloop_core.results.study.forgetting import Forgetting
from rloop_core.results.study.intervals import Effect
from rloop_core.results.study.overfitting import VISIBLE, Overfitting
from rloop_core.results.study.record import StudyRecord
from rloop_core.results.study.table import StudyTable

OPPOSITE, UNRESOLVED, AS_CLAIMED = "the opposite", "not resolved", "as claimed"
OUTCOMES = (OPPOSITE, UNRESOLVED, AS_CLAIMED)


@dataclass(frozen=True)
class Claim:
    """One claim on one set.

    Attributes:
        claim: In words.
        set: The problem set.
        quantity: What was measured: the metric of a difference, in words elsewhere.
        expected: 1 or -1: the sign that the paper claims.
        effect: What was found; shares, as fractions.
        seeds: Seeds that it rests on.
        outcome: One of `OUTCOMES`.
        remark: Why, where the interval alone does not say it.
    """

    claim: str
    set: str
    quantity: str
    expected: int
    effect: Effect
    seeds: tuple[int, ...]
    outcome: str
    remark: str = ""


def outcome_of(effect: Effect, expected: int) -> str:
    """Return what an interval says about a claimed sign."""
    return {expected: AS_CLAIMED, -expected: OPPOSITE}.get(effect.sign, UNRESOLVED)


def claims(
    record: StudyRecord, table: StudyTable, seen: Overfitting | None, forgotten: Sequence[Forgetting]
) -> list[Claim]:
    """Return every claim that there are numbers for: the opposite first, then not resolved, then as claimed."""
    titles = record.titles
    main, reference = (titles[arm] for arm in record.pair)
    rows: list[Claim] = []
    ablations: list[Claim] = []
    for label in record.sets:
        ends = record.ends(label)
        claimed = [metric for metric in record.metrics[label] if metric in ends or metric.startswith("pass@")]
        rows += _differences(table, label, f"{main} is better than {reference}", record.pair, 1, claimed)
        rows += _differences(table, label, f"{main} is better than the base", (record.main, record.main), 1, ends)
        for arm in record.ablations:
            worse = f"{titles[arm]} is worse than {main}"
            ablations += _differences(table, label, worse, (arm, record.main), -1, ends)
        rows += _falls(record, seen, label, f"{reference} overfits") if seen else []
    rows += [
        Claim(f"{main} forgets less than {reference}", one.set, f"beyond chance, {one.path}", 1, one.excess_difference,
              one.paired, outcome_of(one.excess_difference, 1))
        for one in forgotten if one.arm == record.main and one.excess_difference
    ]  # fmt: skip
    return sorted([*rows, *ablations], key=lambda claim: OUTCOMES.index(claim.outcome))


def _differences(
    table: StudyTable, label: str, claim: str, arms: tuple[str, str], expected: int, metrics: Sequence[str]
) -> list[Claim]:
    """Return a claim for each metric, on two arms' last policies; of an arm with itself: on its last and the base."""
    row = table.difference(label, *arms)
    effects = {metric: row.cells[metric] for metric in metrics} if row else {}
    seeds = row.seeds if row else ()
    return [
        Claim(claim, label, metric, expected, effect, seeds, outcome_of(effect, expected))
        for metric, effect in effects.items()
    ]


def _falls(record: StudyRecord, seen: Overfitting, label: str, claim: str) -> list[Claim]:
    """Return the falls of avg@n and pass@k from their peaks; as claimed only where training reward rises meanwhile."""
    rows = []
    for fall in (seen.fall(label, metric) for metric in record.ends(label)):
        if fall:
            outcome = outcome_of(fall.effect, -1)
            if outcome == AS_CLAIMED and fall.verdict != VISIBLE:
                outcome = UNRESOLVED
            quantity, remark = f"{fall.metric}, end minus peak", f"overfitting is {fall.verdict}"
            rows.append(Claim(claim, label, quantity, -1, fall.effect, seen.seeds, outcome, remark))
    return rows
