"""Base against every theta_i: metrics with intervals, and paired differences over the same problems.

Where training holds problems of an evaluation set, the set appears a second time, without them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rloop_core.errors import RLoopError
from rloop_core.evaluation.metrics import metric_order
from rloop_core.json_text import parse_json
from rloop_core.results.report.reading import RunRecord, stage_name
from rloop_core.store import BASE_ITERATION

METRICS_FILE = "metrics.json"


@dataclass(frozen=True)
class EvaluationRow:
    """One policy on one problem set.

    Attributes:
        problem_set: Label of the set.
        iteration: What the policy came out of; -1 is the base.
        policy: "base", "theta_1", ...
        metrics: Name to {value, low, high}: avg@n first, then pass@k with rising k, then majority@n.
        differences: The same names, policy minus base, paired over problems; empty for the base itself.
        problems, samples: What the metrics rest on.
        truncated: Share of samples that did not end within the budget.
        mean_length: Completion tokens a sample.
        sampling_sd: Standard deviation of avg@n that comes from drawing finitely many samples.
    """

    problem_set: str
    iteration: int
    policy: str
    metrics: dict[str, dict[str, float]]
    differences: dict[str, dict[str, float]]
    problems: int
    samples: int
    truncated: float
    mean_length: float
    sampling_sd: float | None

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def evaluation_rows(run: RunRecord) -> list[EvaluationRow]:
    """A row for each evaluated policy and set, sets in the config's order, policies in time's."""
    evaluated = [key for key in sorted(run.manifests) if key[1] == "evaluate"]
    contents = {iteration: content for iteration, _ in evaluated if (content := stored_evaluation(run, iteration))}
    labels = list(dict.fromkeys(label for content in contents.values() for label in content["sets"]))
    order = {source.label: place for place, source in enumerate(run.config.evaluate.sets)}
    rows = []
    for label in sorted(labels, key=lambda label: order.get(label, len(order))):
        base = _outcomes(run, BASE_ITERATION, contents.get(BASE_ITERATION), label)
        with_it = {iteration: content for iteration, content in contents.items() if label in content["sets"]}
        for iteration, content in with_it.items():
            summary = content["sets"][label]
            paired = iteration != BASE_ITERATION and base is not None
            outcomes = _outcomes(run, iteration, content, label) if paired else None
            rows.append(_row(run, iteration, label, summary, outcomes, base))
        known = run.data.known(label) if run.data else frozenset()
        if known:
            rows += _rows_without(run, with_it, label, known)
    return rows


def snapshot_rows(run: RunRecord, iteration: int, step: int, name: str) -> list[EvaluationRow]:
    """A row a set of one of explore's snapshots, called so; without differences to the base."""
    content = stored_evaluation(run, iteration)
    found = content["snapshots"].get(str(step), {}) if content else {}
    return [replace(_row(run, iteration, label, one, None, None), policy=name) for label, one in found.items()]


def _rows_without(
    run: RunRecord, contents: dict[int, dict[str, Any]], label: str, known: frozenset[str]
) -> list[EvaluationRow]:
    """The set's rows over the problems that training does not hold, from the stored samples."""
    from rloop_core.evaluation.outcomes import summarise

    rows: list[EvaluationRow] = []
    base: Any = None
    for iteration, content in contents.items():
        outcomes = _outcomes(run, iteration, content, label)
        if outcomes is None:
            continue
        if known.issuperset(outcomes.problem_ids):
            run.note(f"Every problem of {label} is among the training problems.")
            return []
        clean = outcomes.without(known)
        base = clean if iteration == BASE_ITERATION else base
        summary = summarise(clean, run.config.evaluate.of(label).k, seed=run.config.seed)
        title = f"{label}, without {len(outcomes) - len(clean)} contaminated"
        rows.append(_row(run, iteration, title, summary, clean, base))
    return rows


def sample_files(run: RunRecord, iteration: int, label: str, step: int | None = None) -> list[Path]:
    """The parquet files with an evaluation's samples on one set; of explore's snapshot where an RL step is given."""
    content = stored_evaluation(run, iteration)
    folder = content["folders"].get(label) if content else None
    if folder and step is not None:
        folder = f"step-{step:06d}/{folder}"
    return (
        [path for path in run.files(iteration, "evaluate", f"{folder}/") if path.suffix == ".parquet"] if folder else []
    )


def stored_evaluation(run: RunRecord, iteration: int) -> dict[str, Any] | None:
    """What the stage wrote beside the samples, None where there is nothing, or nothing that can be read.

    ``{"sets": {label: summary}, "folders": {label: folder}, "snapshots": {RL step: {label: summary}}}``
    """
    path = run.file(iteration, "evaluate", METRICS_FILE)
    if path is None:
        return None

    def read() -> dict[str, Any]:
        content = parse_json(path.read_bytes())
        by_step = content.get("snapshots", {})
        return {
            "sets": _summaries(content["sets"]),
            "folders": {label: str(folder) for label, folder in content["folders"].items()},
            "snapshots": {str(int(step)): _summaries(found) for step, found in by_step.items()},
        }

    return run.read(f"{METRICS_FILE} of {stage_name(iteration, 'evaluate')}", read, None)


def _summaries(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Summaries by set; raises where these are none."""
    return {label: {**one, "problems": int(one["problems"])} for label, one in found.items()}


def _outcomes(run: RunRecord, iteration: int, content: dict[str, Any] | None, label: str) -> Any:
    from rloop_core.evaluation.outcomes import problem_outcomes

    files = sample_files(run, iteration, label) if content else []
    if not files:
        return None
    return run.read(f"{run.policy_name(iteration)} on {label}", lambda: problem_outcomes(files), None)


def _row(
    run: RunRecord, iteration: int, label: str, summary: dict[str, Any], outcomes: Any, base: Any
) -> EvaluationRow:
    found = {name: value for name, value in summary.items() if isinstance(value, dict) and "low" in value}
    metrics = {name: found[name] for name in sorted(found, key=metric_order)}
    return EvaluationRow(
        problem_set=label,
        iteration=iteration,
        policy=run.policy_name(iteration),
        metrics=metrics,
        differences=_differences(run, iteration, label, outcomes, base, list(metrics)),
        problems=summary["problems"],
        samples=summary["samples"],
        truncated=summary["truncated"],
        mean_length=summary["mean_length"],
        sampling_sd=summary["sampling_sd"],
    )


def _differences(
    run: RunRecord, iteration: int, label: str, outcomes: Any, base: Any, names: list[str]
) -> dict[str, dict[str, float]]:
    """Policy minus base with its paired interval; nothing where the two did not answer the same problems."""
    if iteration == BASE_ITERATION or base is None or outcomes is None:
        return {}
    from rloop_core.evaluation.outcomes import compare

    ks = [int(name.removeprefix("pass@")) for name in names if name.startswith("pass@")]
    try:
        found = compare(outcomes, base, ks, seed=run.config.seed)
    except RLoopError as error:
        run.note(f"{run.policy_name(iteration)} and the base cannot be compared on {label}: {error}")
        return {}
    return {name: {key: found[name][key] for key in ("value", "low", "high")} for name in names if name in found}
