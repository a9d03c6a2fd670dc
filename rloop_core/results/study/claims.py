"""What the paper claims, with the sign that it claims, beside what this study found; what disagrees comes first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rloop_core.results.study.effects import Effect
from rloop_core.results.study.forgetting import Forgetting
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

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {**self.__dict__, "effect": self.effect.to_dict()}


def judged(effect: Effect, expected: int) -> str:
    """What an interval says to a claimed sign."""
    return {expected: AS_CLAIMED, -expected: OPPOSITE}.get(effect.sign, UNRESOLVED)


def claims(
    record: StudyRecord, table: StudyTable, seen: Overfitting | None, forgotten: Sequence[Forgetting]
) -> list[Claim]:
    """Every claim that there are numbers for: the opposite first, then what is not resolved, then what came out."""
    study, titles = record.study, record.titles
    main, reference = titles[study.main], titles[study.reference]
    found: list[Claim] = []
    ablations: list[Claim] = []
    for label in record.sets:
        better, ends = f"{main} is better than {reference}", record.ends(label)
        claimed = [one for one in record.metrics[label] if one in ends or one.startswith("pass@")]
        found += _differences(table, label, better, (study.main, study.reference), 1, claimed)
        found += _differences(table, label, f"{main} is better than the base", (study.main, study.main), 1, ends)
        for arm in record.ablations:
            worse = f"{titles[arm]} is worse than {main}"
            ablations += _differences(table, label, worse, (arm, study.main), -1, ends)
        found += _overfits(record, seen, label, reference)
    found += [
        Claim(f"{main} forgets less than {reference}", one.set,
              f"beyond chance, {one.path}", 1, one.excess_difference, one.paired, judged(one.excess_difference, 1))
        for one in forgotten if one.arm == study.main and one.excess_difference
    ]  # fmt: skip
    return sorted([*found, *ablations], key=lambda one: OUTCOMES.index(one.outcome))


def _differences(
    table: StudyTable, label: str, said: str, arms: tuple[str, str], expected: int,
    metrics: Sequence[str],
) -> list[Claim]:  # fmt: skip
    """A claim a metric, about the difference of two arms' last policies; of an arm with itself: to the base."""
    row = table.difference(label, *arms)
    if row is None:
        return []
    return [
        Claim(said, label, metric, expected, row.cells[metric], row.seeds,
              judged(row.cells[metric], expected))
        for metric in metrics
    ]  # fmt: skip


def _overfits(record: StudyRecord, seen: Overfitting | None, label: str, reference: str) -> list[Claim]:
    """The falls of avg@n and pass@k from their peaks; as claimed only where training reward rises meanwhile."""
    falls = [fall for metric in record.ends(label) if seen and (fall := seen.fall(label, metric))]
    found = []
    for fall in falls:
        outcome = judged(fall.effect, -1)
        if outcome == AS_CLAIMED and fall.verdict != VISIBLE:
            outcome = UNRESOLVED
        quantity, remark = f"{fall.metric}, end minus peak", f"overfitting is {fall.verdict}"
        seeds = seen.seeds if seen else ()
        found.append(Claim(f"{reference} overfits", label, quantity, -1, fall.effect, seeds, outcome, remark))
    return found
