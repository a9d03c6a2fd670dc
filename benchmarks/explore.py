"""An RL step with every rollout recorded, against the same without the record, and against the bare TRL trainer.

rloop's two trainers generate the same completions; bare TRL generates its own, from the same policy and problems.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from benchmarks.measure import Result
from benchmarks.trainers import FROZEN, compare_steps, time_in_turns

WARM_UP, STEPS = 2, 10
WORKLOAD = {
    "problems.size": 512,
    "problems.seed": 1000,
    "problems.params": {"min_terms": 2, "max_terms": 7, "min_digits": 1, "max_digits": 1},
    "explore.problems_per_step": 16,
    "explore.mini_batch_rollouts": 128,
}
"""256 rollouts an RL step; from two terms to seven, completions differ in length, as those of a reasoning model do."""
RIVALS = {"bare": "recording on / bare TRL", "silent": "recording on / off"}
BARS = {"bare": 0.60, "silent": 1.03, "padding": 1.06, "ranks": 1.05, "verifying": 0.01}


def bench() -> list[Result]:
    """Return the median ratios of an RL step's seconds, with recording, to the others', and the padding of updates."""
    from rloop_core.config import load_config
    from rloop_core.policies import bundled_policy_path

    changes = {"explore.steps": WARM_UP + STEPS, **WORKLOAD, **FROZEN}
    overrides = [f"{field}={json.dumps(value)}" for field, value in changes.items()]
    config = load_config("deployments/configs/demo.yaml", overrides)
    with tempfile.TemporaryDirectory() as folder:
        seconds, figures = time_in_turns((*RIVALS, "recorded"), config, bundled_policy_path(), Path(folder), "cpu")
    ours, rows = figures["recorded"], config.explore.mini_batch_rollouts
    padding = f"bare TRL {figures['bare'].padding:.3f}; {sum(ours.lengths):,} real tokens"
    share = ours.verifying / sum(seconds["recorded"])
    results = [
        Result("explore: tokens computed in updates / real", ours.padding, BARS["padding"], "x", padding),
        Result("explore: slowest rank / mean", ours.slowest(rows, 8), BARS["ranks"], "x", "8 simulated ranks"),
        Result("explore: verifying / RL step", share, BARS["verifying"], "x", f"{ours.verifying:.2f} s"),
    ]
    for reference, words in RIVALS.items():
        ratio, detail = compare_steps(seconds, "recorded", reference, WARM_UP)
        results.append(Result(f"explore: RL step, {words}", ratio, BARS[reference], "x", detail))
    return results
