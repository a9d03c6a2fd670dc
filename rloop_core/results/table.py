"""Table 1: the base, what every arm ends with, and paired differences over the same problems and seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from rloop_core.config import Config
from rloop_core.results.frame import BASE, ENDS, Policy, Results, Side
from rloop_core.results.intervals import crossed_effects
from rloop_core.results.selection import BIASED
from rloop_core.results.tables import DIFFERENCE, POLICY, MetricTable, Row, Table, difference_name, percent_interval

AVERAGE = "Avg"
"""Label of the mean over sets: every set counts alike, and problems are resampled within each."""
Steps = dict[str, dict[str, dict[Policy, Row]]]
"""A row a policy, in the order of training, by set and arm."""
SideOf = Callable[[str], Side]
"""One side of a comparison on a set."""
_MOST_SETS = 3


@dataclass(frozen=True)
class ResultTable:
    """Rows by set, and by `AVERAGE` where there are several sets."""

    policies: dict[str, list[Row]] = field(default_factory=dict)
    """Base, every arm's last policy, and the reference's best one in hindsight; of a single run every theta."""
    differences: dict[str, list[Row]] = field(default_factory=dict)
    """Arms minus the reference, and the main arm minus the best in hindsight and minus the base."""
    ablations: dict[str, list[Row]] = field(default_factory=dict)
    """Every ablation minus the main arm."""
    iterations: dict[str, list[Row]] = field(default_factory=dict)
    """The main arm after each iteration minus the reference at equal RL steps."""

    def rows(self) -> list[Row]:
        """Return all rows."""
        parts = (self.policies, self.differences, self.ablations, self.iterations)
        return [row for part in parts for rows in part.values() for row in rows]

    def difference(self, label: str, first: str, second: str) -> Row | None:
        """Return the difference of two arms' last policies on a set; of the main arm with itself: to the base."""
        rows = [*self.differences.get(label, ()), *self.ablations.get(label, ())]
        return next((row for row in rows if row.arms == (first, second) and not row.about), None)


def result_table(results: Results) -> ResultTable:
    """Compare the arms at the end of training; what is missing is left out."""
    table = ResultTable()
    if results.reference is None:
        for label in results.sets:
            _of_one_run(results, label, table)
        return table
    for label in [*results.sets, *([AVERAGE] if len(results.sets) > 1 else [])]:
        table.policies[label] = _policies(results, label)
        table.differences[label] = _differences(results, label)
        if label != AVERAGE:
            end = _final(results, results.main)
            rows = (make_row(results, label, _final(results, arm), end) for arm in results.ablations)
            table.ablations[label] = _present(rows)
            table.iterations[label] = _by_iteration(results, label)
    return table


def make_row(
    results: Results, label: str, first: SideOf, second: SideOf | None = None, name: str = "", about: str = ""
) -> Row | None:
    """Return one side's mean values, or its paired differences to another one; None without a seed that has them.

    Of `AVERAGE` it is the mean over the sets, of the metrics that every set has.
    """
    labels = results.sets if label == AVERAGE else [label]
    sides = [(first(one), second(one) if second else None) for one in labels]
    every = [side for pair in sides for side in pair if side]
    seeds = tuple(seed for seed in every[0].policies if all(seed in side.policies for side in every))
    metrics = [metric for metric in results.metrics[labels[0]] if all(metric in results.metrics[one] for one in labels)]
    if not seeds or not metrics:
        return None
    key = (label, str(sides))
    if key not in results.effects:
        tables = []
        for one, (ours, theirs) in zip(labels, sides, strict=True):
            values = results.values(one, ours, seeds)
            other = results.values(one, theirs, seeds) if theirs else None
            tables.append(np.stack([values[name] - other[name] if other else values[name] for name in metrics]))
        within = (-1.0 if second else 0.0, 1.0)
        results.effects[key] = crossed_effects(*tables, within=within, seed=results.resampling)
    arms = tuple(side.arm for side in sides[0] if side)
    kind = DIFFERENCE if second else "hindsight" if about else POLICY
    cells = dict(zip(metrics, results.effects[key], strict=True))
    name = name or (difference_name(*(results.titles[arm] for arm in arms)) if second else results.titles[arms[0]])
    policy = ", ".join(sorted({sides[0][0].policies[seed].label for seed in seeds})) if label != AVERAGE else ""
    return Row(label, name, kind, cells, sum(len(results.problems[one]) for one in labels), arms, policy, seeds, about)


def by_step(results: Results) -> Steps:
    """Return every evaluated policy's values over the seeds."""

    def path(label: str, arm: str) -> dict[Policy, Row]:
        rows = {one: make_row(results, label, _at(results, arm, one)) for one in results.policies(label, arm)}
        return {policy: row for policy, row in rows.items() if row}

    return {label: {arm: path(label, arm) for arm in results.titles} for label in results.sets}


def chosen_on(results: Results) -> tuple[str, str, bool]:
    """Return the set and the metric by which a best checkpoint is chosen, and whether that is hindsight.

    It is not where the config names a validation set (`evaluate.select_on`); else the first set and avg@n are taken.
    """
    config = next(iter(results.runs.values())).config.evaluate
    if config.select_on in results.sets:
        label = str(config.select_on)
        metrics = results.metrics[label]
        return label, config.select_by if config.select_by in metrics else metrics[0], False
    return results.sets[0], results.metrics[results.sets[0]][0], True


def rows_table(name: str, rows: Iterable[Row]) -> Table:
    """Return rows in long form, for CSV: with what several seeds say each and together."""
    columns = ("set", "row", "kind", "policy", "metric", "value", "low", "high", "problems", "crossed_low",
               "crossed_high", "seeds_low", "seeds_high", "seeds", "by_seed", "about")  # fmt: skip
    long = tuple(
        (row.set, row.name, row.kind, row.policy, metric, one.value, one.low, one.high, row.problems,
         *(one.crossed or (None, None)), *(one.seeds or (None, None)), " ".join(map(str, row.seeds)),
         " ".join(f"{value:.6f}" for value in one.by_seed), row.about)
        for row in rows for metric, one in row.cells.items()
    )  # fmt: skip
    return Table(name, columns, long)


def values_table(results: Results) -> Table:
    """Return every value that the results rest on: one row a seed, arm, set, policy and metric."""
    rows = [
        (seed, arm, label, policy.label, policy.kind, policy.step, metric, value)
        for label in results.sets
        for arm in results.titles
        for seed in results.seeds
        for policy in results.policies(label, arm, seed)
        for metric, value in results.means(label, arm, seed, policy).items()
    ]
    return Table("values", ("seed", "arm", "set", "policy", "kind", "step", "metric", "value"), tuple(rows))


def metric_table(results: Results, table: ResultTable, label: str) -> MetricTable:
    """Return a set's part of Table 1, as terminals and Markdown show it."""
    problems = len(results.problems[label])
    if results.reference is None:
        samples = int(results.frame.query("`set` == @label").groupby(["step", "kind"], sort=False)["n"].sum().iloc[0])
        basis = f"{problems} problems, {samples:,} samples a policy; [95 % bootstrap interval over problems]"
        last = table.differences[label][-1:]
        return MetricTable(label, [*table.policies[label], *last], basis, last[0].name if last else "")
    rows = [*table.policies[label], *table.differences[label]]
    seeds = max((len(row.seeds) for row in rows), default=0)
    over = "seeds; [95 % interval over problems and seeds]" if seeds > 1 else "seed; [95 % interval over problems]"
    claim = difference_name(*(results.titles[arm] for arm in results.pair))
    return MetricTable(label, rows, f"{problems} problems, {seeds} {over}", claim)


def result_sentence(results: Results, table: ResultTable) -> str:
    """Return the result in one sentence: a run's base and last policy, or the main arm minus the reference."""
    parts = []
    for label in results.sets[:_MOST_SETS]:
        names = results.ends(label)
        if results.reference is not None:
            row = table.difference(label, results.main, results.reference)
            values = [f"{name} {percent_interval(row.cells[name], '+')}" for name in names] if row else []
        elif not table.policies[label]:  # snapshots alone can be read
            values = []
        else:
            first, last = table.policies[label][0].cells, table.policies[label][-1].cells
            before = {name: f"{100 * first[name].value:.1f} -> " for name in names if first is not last}
            values = [f"{name} {before.get(name, '')}{100 * last[name].value:.1f} %" for name in names]
        parts += [f"{label} {', '.join(values)}"] if values else []
    more = f"; and {len(results.sets) - _MOST_SETS} more sets" if len(results.sets) > _MOST_SETS else ""
    config = next(iter(results.runs.values())).config if results.runs else None
    if results.reference is not None:
        steps = max((run.total_steps for run in results.runs.values()), default=0)
        done = f"{' minus '.join(results.titles[arm] for arm in results.pair)} after {steps:,} RL steps"
        return f"{done}, in points: {'; '.join(parts)}{more}" if parts else f"{done}: not evaluated yet"
    done = _done(config) if config else ""
    return f"{done}: {'; '.join(parts)}{more}" if parts else done


def effect_of_finetuning(results: Results) -> list[str]:
    """Return a sentence for each theta that is worse in avg@n than the one before, or cannot be told apart from it."""
    (arm, run), *others = ((arm, run) for (arm, _), run in results.runs.items())
    if others or run.config.arm != "rloop":
        return []
    ends = sorted(
        {one for label in results.sets for one in results.policies(label, arm) if one.kind in ("base", *ENDS)}
    )
    sentences = []
    for before, after in pairwise(ends):
        rows = (make_row(results, label, _at(results, arm, after), _at(results, arm, before)) for label in results.sets)
        changes = {row.set: next(iter(row.cells.items())) for row in _present(rows)}
        worse = {label: change for label, change in changes.items() if change[1].sign < 0}
        if not changes or (not worse and any(change.sign > 0 for _, change in changes.values())):
            continue
        parts = [
            f"{name} {percent_interval(cell, '+')} on {label}" for label, (name, cell) in (worse or changes).items()
        ]
        found = "is worse than" if worse else "cannot be told apart from"
        what = f"{after.label} {found} {before.label}: {'; '.join(parts)}"
        sentences.append(f"{what} (points; docs/how-to/expert-sets.md).")
    return sentences


def _present(rows: Iterable[Row | None]) -> list[Row]:
    return [row for row in rows if row]


def _at(results: Results, arm: str, policy: Policy | None) -> SideOf:
    return lambda label: results.at(label, arm, policy)


def _final(results: Results, arm: str) -> SideOf:
    return lambda label: results.final_side(label, arm)


def _base(results: Results) -> SideOf:
    """Return the base of the first arm that has one: it is the same policy in every arm."""

    def of(label: str) -> Side:
        sides = [results.at(label, arm, BASE) for arm in results.titles]
        return next((side for side in sides if side.policies), sides[0])

    return of


def _of_one_run(results: Results, label: str, table: ResultTable) -> None:
    """Add a row for the base and each policy that an iteration ended with, and its difference to the base."""
    arm = results.main
    ends = [one for one in results.policies(label, arm) if one.kind in ("base", *ENDS)]
    names = {one: f"RL {one.label}" if one.kind == "endpoint" else one.label for one in ends}
    table.policies[label] = _present(
        make_row(results, label, _at(results, arm, one), name=name) for one, name in names.items()
    )
    table.differences[label] = _present(
        make_row(results, label, _at(results, arm, one), _at(results, arm, BASE), f"{name} - base")
        for one, name in names.items()
        if one != BASE
    )


def _policies(results: Results, label: str) -> list[Row]:
    rows = [make_row(results, label, _base(results), name="base")]
    for arm in results.titles:
        rows.append(make_row(results, label, _final(results, arm)))
        if arm == results.reference:
            about = f"{_choice(results)}{f'; {BIASED}' if label == chosen_on(results)[0] else ''}"
            rows.append(make_row(results, label, _best(results), name=_best_name(results), about=about))
    return _present(rows)


def _differences(results: Results, label: str) -> list[Row]:
    main, reference = results.pair
    ours, theirs, titles = _final(results, main), _final(results, reference), results.titles
    rows = [make_row(results, label, ours, theirs)]
    rows += [make_row(results, label, _final(results, arm), theirs) for arm in results.ablations]
    best = difference_name(titles[main], _best_name(results))
    rows.append(make_row(results, label, ours, _best(results), best, f"against {_choice(results)}"))
    arms = (main,) if results.progress else (main, reference)
    for arm in arms:
        base = _at(results, arm, BASE)
        rows.append(make_row(results, label, _final(results, arm), base, difference_name(titles[arm], "base")))
    return _present(rows)


def _by_iteration(results: Results, label: str) -> list[Row]:
    """Return what each iteration of the main arm ends with minus the reference at equal RL steps."""
    main, reference = results.pair
    theirs = {one.step: one for one in results.policies(label, reference) if one.kind in ("snapshot", "endpoint")}
    ours = [one for one in results.policies(label, main) if one.kind == "theta" and one.step in theirs]
    return _present(
        make_row(
            results, label, _at(results, main, one), _at(results, reference, theirs[one.step]),
            difference_name(one.label, theirs[one.step].label), "at equal RL steps",
        )
        for one in ours
    )  # fmt: skip


def _best(results: Results) -> SideOf:
    """Return the reference's checkpoint of each seed that is best on the set to choose on, for any set."""
    judge, metric, _ = chosen_on(results)
    arm = str(results.reference)

    def of(label: str) -> Side:
        chosen: dict[int, Policy] = {}
        for seed in results.seeds:
            there = results.policies(label, arm, seed)
            means = {
                policy: results.means(judge, arm, seed, policy)[metric]
                for policy in results.policies(judge, arm, seed)
                if policy.kind in ("snapshot", "endpoint") and policy in there
            }
            if len(means) > 1:
                chosen[seed] = max(means, key=means.__getitem__)
        return Side(arm, chosen)

    return of


def _choice(results: Results) -> str:
    judge, metric, _ = chosen_on(results)
    return f"each seed's checkpoint with the highest {metric} on {judge}"


def _best_name(results: Results) -> str:
    title = results.titles[str(results.reference)]
    return f"{title}, {'best checkpoint in hindsight' if chosen_on(results)[2] else 'early stopping'}"


def _done(config: Config) -> str:
    if config.arm == "vanilla-rl":
        return f"vanilla RL, {config.explore.steps:,} RL steps"
    return f"{config.iterations} iteration{'s' if config.iterations > 1 else ''}"
