"""Base against every theta_i: metrics with intervals, and paired differences over the same problems.

If training holds problems of an evaluation set, the set appears a second time, without them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from rloop_core.config import Config
from rloop_core.errors import RLoopError
from rloop_core.evaluation.metrics import headline_metrics, metrics_of
from rloop_core.results.run_reader import RunRecord, sample_files, stored_evaluation, theta_name
from rloop_core.results.tables import DIFFERENCE, POLICY, MetricTable, Row, Table, percent_interval
from rloop_core.store import BASE_ITERATION

Metrics = dict[str, dict[str, float]]
"""Name to {value, low, high}: avg@n first, then pass@k with rising k, then majority@n."""

_MOST_SETS = 3


@dataclass(frozen=True)
class EvaluationRow:
    """One policy on one problem set.

    Attributes:
        problem_set: Label of the set.
        iteration: The iteration that ended with the policy; -1 is the base.
        policy: "base", "theta_1", ...
        metrics: Its metrics.
        differences: The same metrics, policy minus base, paired over problems; empty for the base itself.
        change: The same metrics, policy minus that of the iteration before.
        problems, samples: Numbers of problems and samples behind the metrics.
        truncated: Share of samples that did not end within the token budget.
        mean_length: Completion tokens a sample.
        sampling_sd: Standard deviation of avg@n that comes from drawing finitely many samples.
    """

    problem_set: str
    iteration: int
    policy: str
    metrics: Metrics
    differences: Metrics
    change: Metrics
    problems: int
    samples: int
    truncated: float
    mean_length: float
    sampling_sd: float | None

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self)


@dataclass(frozen=True)
class EvaluationTable:
    """The rows of one problem set, the base first.

    Attributes:
        label: Label of the set.
        rows: A row a policy.
    """

    label: str
    rows: list[EvaluationRow]

    @property
    def metrics(self) -> list[str]:
        """Names of the metrics that any row has."""
        return list(dict.fromkeys(name for row in self.rows for name in row.metrics))

    @property
    def headline(self) -> list[str]:
        """avg@n and the pass@k of the greatest k, of the last policy."""
        return headline_metrics(self.rows[-1].metrics)

    def metric_table(self) -> MetricTable:
        """Return the policies with the last one's difference to the base, as Markdown and terminals show them."""
        first, last = self.rows[0], self.rows[-1]
        rows = [Row(self.label, row.policy, POLICY, row.metrics, row.problems) for row in self.rows]
        claim = f"{last.policy} - base"
        if last.differences:
            rows.append(Row(self.label, claim, DIFFERENCE, last.differences, last.problems))
        basis = f"{first.problems} problems, {first.samples:,} samples a policy"
        return MetricTable(self.label, rows, f"{basis}; [95 % bootstrap interval over problems]", claim)


def evaluation_tables(rows: Sequence[EvaluationRow]) -> list[EvaluationTable]:
    """Return one table a problem set, in the order of the rows."""
    by_set: dict[str, list[EvaluationRow]] = {}
    for row in rows:
        by_set.setdefault(row.problem_set, []).append(row)
    return [EvaluationTable(label, group) for label, group in by_set.items()]


def long_table(rows: Sequence[EvaluationRow]) -> Table:
    """Return the evaluation in long form for CSV: one row a set, policy and metric."""
    columns = ("set", "policy", "metric", "value", "low", "high", "minus_base", "minus_base_low", "minus_base_high",
               "problems", "samples", "truncated", "mean_length", "sampling_sd")  # fmt: skip
    ends = ("value", "low", "high")
    cells = tuple(
        (row.problem_set, row.policy, name, *(metric[end] for end in ends),
         *(row.differences.get(name, {}).get(end) for end in ends),
         row.problems, row.samples, row.truncated, row.mean_length, row.sampling_sd)
        for row in rows for name, metric in row.metrics.items()
    )  # fmt: skip
    return Table("evaluation", columns, cells)


def result_sentence(config: Config, rows: Sequence[EvaluationRow]) -> str:
    """Return "3 iterations: held-out avg@16 41.2 -> 58.3 %, pass@16 84.0 -> 98.0 %", base to last policy."""
    done = f"{config.iterations} iteration{'s' if config.iterations > 1 else ''}"
    if config.arm == "vanilla-rl":
        done = f"vanilla RL, {config.explore.steps:,} RL steps"
    tables = evaluation_tables(rows)
    changes = []
    for table in tables[:_MOST_SETS]:
        first, last = table.rows[0].metrics, table.rows[-1].metrics
        parts = []
        for name in table.headline:
            before = f"{100 * first[name]['value']:.1f} -> " if len(table.rows) > 1 and name in first else ""
            parts.append(f"{name} {before}{100 * last[name]['value']:.1f} %")
        changes.append(f"{table.label} {', '.join(parts)}")
    more = f"; and {len(tables) - _MOST_SETS} more sets" if len(tables) > _MOST_SETS else ""
    return f"{done}: {'; '.join(changes)}{more}" if changes else done


def evaluation_rows(run: RunRecord) -> list[EvaluationRow]:
    """Return a row for each evaluated policy and set: sets in the config's order, policies in the order of training."""
    evaluated = [iteration for iteration, stage in sorted(run.manifests) if stage == "evaluate"]
    contents = {iteration: content for iteration in evaluated if (content := stored_evaluation(run, iteration))}
    labels = list(dict.fromkeys(label for content in contents.values() for label in content["sets"]))
    order = {source.label: index for index, source in enumerate(run.config.evaluate.sets)}
    rows = []
    for label in sorted(labels, key=lambda label: order.get(label, len(order))):
        summaries = {i: content["sets"][label] for i, content in contents.items() if label in content["sets"]}
        outcomes = {iteration: _outcomes(run, iteration, label) for iteration in summaries}
        for iteration, summary in summaries.items():
            of_label = (outcomes.get(place) for place in (iteration, BASE_ITERATION, iteration - 1))
            rows.append(_row(run, iteration, label, summary, *of_label))
    for iteration in evaluated if run.config.arm == "rloop" else ():
        if sentence := _effect_of_finetuning([row for row in rows if row.iteration == iteration]):
            run.note(sentence)
    return rows


def _effect_of_finetuning(rows: Sequence[EvaluationRow]) -> str | None:
    """Return a sentence if theta_{i+1} is worse in avg@n than theta_i on a set, or not to be told apart on any."""
    changes = {row.problem_set: (name, row.change[name]) for row in rows for name in list(row.change)[:1]}
    if not changes or rows[0].iteration == BASE_ITERATION:
        return None
    worse = {label: change for label, change in changes.items() if change[1]["high"] < 0}
    if not worse and any(change["low"] > 0 for _, change in changes.values()):
        return None
    parts = [f"{name} {percent_interval(cell, '+')} on {label}" for label, (name, cell) in (worse or changes).items()]
    found = "is worse than" if worse else "cannot be told apart from"
    before = theta_name(rows[0].iteration - 1)
    return f"{rows[0].policy} {found} {before}: {'; '.join(parts)} (points; docs/how-to/expert-sets.md)."


def snapshot_rows(run: RunRecord, iteration: int, step: int, name: str) -> list[EvaluationRow]:
    """Return a row a set of one of explore's snapshots, named `name`; without differences to the base."""
    content = stored_evaluation(run, iteration)
    sets = content["snapshots"].get(str(step), {}) if content else {}
    rows = [_row(run, iteration, label, summary, None, None, None) for label, summary in sets.items()]
    return [replace(row, policy=name) for row in rows]


def _outcomes(run: RunRecord, iteration: int, label: str) -> Any:
    """Return the outcomes of an evaluation's samples, None if there are none or they cannot be read."""
    from rloop_core.evaluation.outcomes import problem_outcomes

    files = sample_files(run, iteration, label)
    what = f"{run.policy_name(iteration)} on {label}"
    return run.read(what, lambda: problem_outcomes(files), None) if files else None


def _row(
    run: RunRecord, iteration: int, label: str, summary: dict[str, Any], outcomes: Any, base: Any, before: Any
) -> EvaluationRow:
    metrics = metrics_of(summary)
    differences = _differences(run, iteration, label, outcomes, base, list(metrics))
    # theta_1 comes after the base
    change = differences if before is base else _differences(run, iteration, label, outcomes, before, list(metrics))
    return EvaluationRow(
        problem_set=label,
        iteration=iteration,
        policy=run.policy_name(iteration),
        metrics=metrics,
        differences=differences,
        change=change,
        problems=summary["problems"],
        samples=summary["samples"],
        truncated=summary["truncated"],
        mean_length=summary["mean_length"],
        sampling_sd=summary["sampling_sd"],
    )


def _differences(run: RunRecord, iteration: int, label: str, outcomes: Any, other: Any, names: list[str]) -> Metrics:
    """Return policy minus another with its paired interval; nothing if the two did not answer the same problems."""
    if iteration == BASE_ITERATION or other is None or outcomes is None:
        return {}
    from rloop_core.evaluation.outcomes import compare

    ks = [int(name.removeprefix("pass@")) for name in names if name.startswith("pass@")]
    try:
        gains = compare(outcomes, other, ks, seed=run.config.seed)
    except RLoopError as error:
        run.note(f"{run.policy_name(iteration)} and an earlier policy cannot be compared on {label}: {error}")
        return {}
    return {name: gain for name, gain in gains.items() if name in names}
