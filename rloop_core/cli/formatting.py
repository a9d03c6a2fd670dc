"""A stage's result in a few words, from its manifest's or its last event's metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rloop_core.evaluation.metrics import metric_order
from rloop_core.results.tables import duration

__all__ = ["duration", "in_words", "stage_name", "step_in_words"]


def stage_name(stage: str, iteration: int) -> str:
    """ "explore 0", or what is evaluated: "evaluate base", "evaluate theta_1"."""
    from rloop_core.results.run_record import theta_name

    return f"{stage} {theta_name(iteration)}" if stage == "evaluate" else f"{stage} {iteration}"


def in_words(stage: str, metrics: Mapping[str, Any]) -> str:
    """What came out; empty when the metrics do not say."""
    try:
        return _WORDS[stage](metrics)
    except (LookupError, AttributeError, TypeError, ValueError):
        return ""


def step_in_words(metrics: Mapping[str, Any]) -> str:
    """The figures of one RL step or update."""
    shown = (("reward", "{:+.2f}"), ("accuracy", "{:.0%}"), ("entropy", "{:.2f}"), ("loss", "{:.4f}"))
    words = [f"{name} {form.format(metrics[name])}" for name, form in shown if metrics.get(name) is not None]
    drift = [f"drift {metrics['drift']:.3f}"] if metrics.get("drift") is not None else []
    return ", ".join((words if len(words) < 4 else words[:3]) + drift)


def _explore(metrics: Mapping[str, Any]) -> str:
    reward = f"reward {metrics['reward_first']:+.2f} to {metrics['reward_last']:+.2f}"
    return f"{reward}, accuracy {metrics['accuracy_first']:.0%} to {metrics['accuracy_last']:.0%}"


def _harvest(metrics: Mapping[str, Any]) -> str:
    return f"mean success rate {metrics['mean_success_rate']:.0%}"


def _filter(metrics: Mapping[str, Any]) -> str:
    status = "" if metrics["status"] == "filtered" else f", {metrics['status']}"
    of = f"{metrics['trajectories']:,} trajectories of {metrics['problems']:,} hard problems"
    return f"{of} (threshold {metrics['threshold']:g}{status})"


def _rft(metrics: Mapping[str, Any]) -> str:
    if metrics["status"] == "carried":
        return "empty expert set: theta_i carried forward"
    figures = [f"{name.replace('_', ' ')} {value:.4g}" for name, value in metrics.items() if isinstance(value, float)]
    return ", ".join(figures[:2]) or str(metrics["status"])


def _evaluate(metrics: Mapping[str, Any]) -> str:
    parts = []
    for label, summary in metrics.items():
        names = sorted((name for name in summary if name.startswith(("avg@", "pass@"))), key=metric_order)
        ends = dict.fromkeys([names[0], names[-1]])
        parts.append(f"{label}: " + ", ".join(f"{name} {summary[name]['value']:.1%}" for name in ends))
    return "; ".join(parts)


_WORDS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "explore": _explore,
    "harvest": _harvest,
    "filter": _filter,
    "rft": _rft,
    "evaluate": _evaluate,
}
