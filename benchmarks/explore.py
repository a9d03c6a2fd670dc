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
    "problems.params": {"min_terms": 4, "max_terms": 6, "min_digits": 1, "max_digits": 1},
    "explore.problems_per_step": 16,
    "explore.mini_batch_rollouts": 128,
}
"""256 rollouts an RL step, of the demo's first problems: as in earlier figures. Its present ones, of five or six terms,
differ less in length, so that there is less padding to leave out."""
BARS = {"bare": 0.60, "silent": 1.03}
"""Most of an RL step's time with recording, against each other trainer."""
PADDING_BAR = 1.06
"""Most tokens computed in the updates for each real one."""
VERIFIER_BAR = 0.01
"""Most of an RL step's time that judging its rollouts may take."""


def bench() -> list[Result]:
    """Return the median ratios of an RL step's seconds, with recording, to the others', and the padding of updates."""
    from rloop_core.config import load_config
    from rloop_core.policies import bundled_policy_path

    changes = {"explore.steps": WARM_UP + STEPS, **WORKLOAD, **FROZEN}
    overrides = [f"{field}={json.dumps(value)}" for field, value in changes.items()]
    config = load_config("deployments/configs/demo.yaml", overrides)
    with tempfile.TemporaryDirectory() as folder:
        kinds = ("bare", "silent", "recorded")
        seconds, figures = time_in_turns(kinds, config, bundled_policy_path(), Path(folder), "cpu")
    padding = f"bare TRL {figures['bare'].padding:.3f}; {figures['recorded'].real:,} real tokens"
    results = [
        Result("explore: tokens computed in updates / real", figures["recorded"].padding, PADDING_BAR, "x", padding)
    ]
    judging, whole = figures["recorded"].verifying, sum(seconds["recorded"])
    detail = f"{judging:.2f} s of {whole:.1f} s"
    results.append(Result("explore: verifying / RL step", judging / whole, VERIFIER_BAR, "x", detail))
    for reference, words in (("bare", "recording on / bare TRL"), ("silent", "recording on / off")):
        ratio, detail = compare_steps(seconds, "recorded", reference, WARM_UP)
        results.append(Result(f"explore: RL step, {words}", ratio, BARS[reference], "x", detail))
    return results
