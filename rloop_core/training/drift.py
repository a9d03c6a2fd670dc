"""How far vLLM's log-probabilities of its own rollouts are from the trainer's: measured by TRL, judged here.

Both hold the same weights, so the distance is rounding and no more. Importance sampling makes up for a little of it; a
lot of it says that the engine draws from another policy than the one that is trained.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

LOGGED = {
    "sampling/sampling_logp_difference/mean": "drift",
    "sampling/sampling_logp_difference/max": "drift_max",
    "sampling/importance_sampling_ratio/mean": "importance_ratio",
    "sampling/importance_sampling_ratio/max": "importance_ratio_max",
}
"""TRL's keys, and what they are called in the record of an RL step. Distances are in nats a token, ratios are after the
cap; TRL logs them with the first update after the rollouts, as means over the rounds of dynamic sampling."""


def drift_alarm(row: Mapping[str, Any], limit: float) -> str | None:
    """What to say of an RL step whose drift is above the limit; None where it is not, or where nothing drifts."""
    drift = row.get("drift")
    if drift is None or drift <= limit:
        return None
    return (
        f"RL step {row['step']}: vLLM's log-probabilities are {drift:.3f} nats a token from the trainer's, above "
        f"{limit:g} (placement.vllm.drift_alarm): it may draw from another policy than the one that is trained"
    )


def drift_summary(rows: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Mean and greatest drift of a phase; nothing of a phase without vLLM."""
    found = [row for row in rows if row.get("drift") is not None]
    if not found:
        return {}
    return {
        "drift_mean": sum(row["drift"] for row in found) / len(found),
        "drift_max": max(row["drift"] for row in found),
    }


def drift_note(rows: Iterable[Mapping[str, Any]], limit: float) -> str | None:
    """One sentence for a report on all RL steps of a run whose drift was above the limit; None where there are none."""
    found = [row for row in rows if row.get("drift") is not None]
    above = [row for row in found if row["drift"] > limit]
    if not above:
        return None
    return (
        f"In {len(above)} of {len(found)} RL steps vLLM's log-probabilities were more than {limit:g} nats a token from "
        f"the trainer's (at most {max(row['drift'] for row in above):.3f}; placement.vllm.drift_alarm): it may have "
        "drawn from another policy than the one that was trained."
    )
