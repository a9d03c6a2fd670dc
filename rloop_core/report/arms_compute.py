"""What each arm cost: RL steps, rollouts, tokens, and seconds by stage."""

from __future__ import annotations

from rloop_core.report.arms import Arm
from rloop_core.report.canvas import Table
from rloop_core.stages.job import STAGES


def compute_table(arms: tuple[Arm, Arm]) -> Table:
    """One row a quantity, one column an arm; None where the run has not come so far."""
    columns = ("quantity", *(arm.title for arm in arms))
    each = [quantities(arm) for arm in arms]
    names = list(dict.fromkeys(name for one in each for name in one))
    return Table("compute", columns, tuple((name, *(one.get(name) for one in each)) for name in names))


def quantities(arm: Arm) -> dict[str, float]:
    """By name; counts are of what the finished artifacts hold."""
    manifests = arm.run.manifests
    found: dict[str, float] = {
        "RL steps": len(arm.steps),
        "rollouts of RL": sum(row.get("rollouts") or 0 for row in arm.steps),
        "completion tokens of RL": sum((row.get("rollouts") or 0) * (row.get("length_mean") or 0) for row in arm.steps),
        "trajectories of RFT": sum(
            one.counts.get("trajectories", 0) for (_, s), one in manifests.items() if s == "rft"
        ),
        "tokens of RFT": sum(one.metrics.get("tokens", 0) for (_, s), one in manifests.items() if s == "rft"),
    }
    for stage in STAGES:
        own = [one.seconds for (_, name), one in manifests.items() if name == stage]
        if own:
            found[f"seconds of {stage}"] = sum(own)
    found["seconds in all"] = sum(one.seconds for one in manifests.values())
    return found
