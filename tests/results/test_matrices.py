"""Which cells of the transition matrices are marked as more than chance."""

from __future__ import annotations

import numpy as np

from rloop_core.evaluation.outcomes import Outcomes
from rloop_core.results.analysis.transitions import SolvedRule, transitions
from rloop_core.results.compare.matrices import transition_matrices
from rloop_core.results.compare.transitions import ArmTransitions, SetTransitions
from rloop_core.results.study.arms import Checkpoint


def test_what_chance_alone_would_forget_is_not_marked() -> None:
    """From the first policy to the second one half of the problems takes the other's place; the third solves none."""
    ids = [f"p{place:02d}" for place in range(40)]
    solved = (np.arange(40) % 2, 1 - np.arange(40) % 2, np.zeros(40, dtype=int))
    outcomes = [Outcomes.from_counts(ids, 8, correct) for correct in solved]
    checkpoints = [Checkpoint(step, 0, "snapshot", f"step {step}", {}, one, ()) for step, one in enumerate(outcomes)]
    arm = ArmTransitions("RL", checkpoints, transitions(outcomes, SolvedRule()), None, [], False)
    shown = transition_matrices(SetTransitions("set", ("RL", "-"), 40, 0, "words", [arm], None), "matrices")
    assert shown is not None
    rows = {row[1:4]: row for row in shown.table.rows}
    marked = {place: row[-1] for place, row in rows.items() if place[0] == "forgetting"}
    assert rows["forgetting", "step 0", "step 1"][4] == rows["forgetting", "step 1", "step 2"][4] == 0.5
    assert marked["forgetting", "step 0", "step 1"] is False
    assert marked["forgetting", "step 1", "step 2"] is True
