"""What each arm cost: RL steps, rollouts, tokens, updates, evaluation, seconds by stage; and whether it is equal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rloop_core.results.compare.arms import Arm
from rloop_core.results.run_record import stored_evaluation, success_counts
from rloop_core.results.tables import Table
from rloop_core.stages.job import STAGES
from rloop_core.store import BASE_ITERATION

_STEPS, _ROLLOUTS, _RL_UPDATES, _RFT_UPDATES = "RL steps", "rollouts of RL", "optimizer updates of RL", "updates of RFT"
_SAMPLED = "rollouts from snapshots for RFT"


@dataclass(frozen=True)
class Compute:
    """Both arms' costs.

    Attributes:
        table: One row a quantity, one column an arm; None where the run has not come so far.
        equality: What is equal and what is not, a sentence each.
    """

    table: Table
    equality: list[str]


def compute(arms: tuple[Arm, Arm]) -> Compute:
    """Both arms' costs, as far as their finished artifacts tell."""
    each = (quantities(arms[0]), quantities(arms[1]))
    names = list(dict.fromkeys(name for one in each for name in one))
    columns = ("quantity", *(arm.title for arm in arms))
    table = Table("compute", columns, tuple((name, *(one.get(name) for one in each)) for name in names))
    titles = (arms[0].title, arms[1].title)
    extra = [one for title, own in zip(titles, each, strict=True) for one in _extra(title, own)]
    return Compute(table, [*_equality(titles, each), *extra])


def quantities(arm: Arm) -> dict[str, float]:
    """By name; counts are of what the finished artifacts hold."""
    manifests = arm.run.manifests
    tokens = sum(_number(row, "rollouts") * _number(row, "length_mean") for row in arm.steps)
    evaluated = _evaluated(arm)
    found: dict[str, float] = {
        _STEPS: len(arm.steps),
        _ROLLOUTS: sum(_number(row, "rollouts") for row in arm.steps),
        "completion tokens of RL": tokens,
        _RL_UPDATES: sum(_updates(arm).values()),
        "trajectories of RFT": _of_rft(arm, lambda made: made.counts.get("trajectories")),
        "tokens of RFT": _of_rft(arm, lambda made: made.metrics.get("tokens")),
        _RFT_UPDATES: _of_rft(arm, lambda made: made.counts.get("updates")),
        "rollouts of evaluation": evaluated[0],
        "completion tokens of evaluation": evaluated[1],
    }
    if sampled := _from_snapshots(arm):
        found[_SAMPLED] = sampled
    for stage in STAGES:
        own = [one.seconds for (_, name), one in manifests.items() if name == stage]
        if own:
            found[f"seconds of {stage}"] = sum(own)
    found["seconds in all"] = sum(one.seconds for one in manifests.values())
    return found


def _number(row: dict[str, Any], name: str) -> float:
    return float(row.get(name) or 0.0)


def _updates(arm: Arm) -> dict[int, float]:
    """Optimizer updates by iteration: each RL step's row has those of its phase so far."""
    found: dict[int, float] = {}
    for row in arm.steps:
        found[row["iteration"]] = max(found.get(row["iteration"], 0.0), _number(row, "policy_step"))
    return found


def _of_rft(arm: Arm, figure: Callable[[Any], Any]) -> float:
    return sum(float(figure(made) or 0.0) for (_, stage), made in arm.run.manifests.items() if stage == "rft")


def _evaluated(arm: Arm) -> tuple[float, float]:
    """Samples and completion tokens of every evaluated policy on every set."""
    samples = tokens = 0.0
    for iteration in (BASE_ITERATION, *arm.run.iterations):
        content = stored_evaluation(arm.run, iteration) if arm.run.manifest(iteration, "evaluate") else None
        for summaries in (content["sets"], *content["snapshots"].values()) if content else ():
            for one in summaries.values():
                samples += _number(one, "samples")
                tokens += _number(one, "samples") * _number(one, "mean_length")
    return samples, tokens


def _from_snapshots(arm: Arm) -> float:
    """Rollouts that harvest sampled from snapshots, beyond those of RL."""
    found = 0.0
    for (iteration, stage), made in arm.run.manifests.items():
        if stage == "harvest" and made.counts.get("snapshot_shards"):
            attempts = sum(tries for _, tries in success_counts(arm.run, iteration).values())
            found += max(0.0, attempts - _number(made.counts, "trajectories"))
    return found


def _equality(titles: tuple[str, str], each: tuple[dict[str, float], dict[str, float]]) -> list[str]:
    """RL steps, rollouts, tokens and updates of RL, the first arm against the second."""
    found = []
    for name in (_STEPS, _ROLLOUTS, "completion tokens of RL", _RL_UPDATES):
        ours, theirs = (one[name] for one in each)
        said = name[:1].upper() + name[1:]
        if ours == theirs:
            found.append(f"{said}: equal, {ours:,.0f} in each arm.")
        else:
            more = f" ({100 * (ours / theirs - 1):+.1f} %)".replace("-", "\N{MINUS SIGN}") if theirs else ""
            found.append(f"{said}: {ours:,.0f} in {titles[0]}, {theirs:,.0f} in {titles[1]}{more}.")
    return found


def _extra(title: str, own: dict[str, float]) -> list[str]:
    """What an arm spends beyond RL."""
    found = []
    if own[_RFT_UPDATES]:
        share = f", {100 * own[_RFT_UPDATES] / own[_RL_UPDATES]:.1f} % of its updates of RL" if own[_RL_UPDATES] else ""
        found.append(f"RFT adds {own[_RFT_UPDATES]:,.0f} optimizer updates to {title}{share}.")
    if own.get(_SAMPLED):
        share = f", {100 * own[_SAMPLED] / own[_ROLLOUTS]:.1f} % of its rollouts of RL" if own[_ROLLOUTS] else ""
        found.append(f"{title} samples {own[_SAMPLED]:,.0f} more rollouts from snapshots for RFT{share}.")
    return found
